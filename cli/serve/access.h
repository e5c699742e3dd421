// Decides from the headers of a request who may use the server. Any web page can make a browser send requests
// to the browser's own machine and network, so listening on localhost alone protects nothing. These headers
// can be a reason to refuse a request:
// - Host: it is a name that is not known to be this server's. An attacker may have pointed the name at this
//   machine (DNS rebinding).
// - Origin, Sec-Fetch-Site: a page of another site sent the request, and --cors does not allow it.
// - Content-Type: it is not JSON. Browsers send forms and plain text to any site without a preflight
//   request.
// - Authorization: the API key is missing or wrong.
#ifndef ZERO_CLI_SERVE_ACCESS_H
#define ZERO_CLI_SERVE_ACCESS_H

#include "base/args.h"
#include "cli/serve/http.h"

struct access {
    const char *host;           // --host
    struct arg_strings hosts;   // --allow-host
    struct arg_strings origins; // --cors
    const char *key;            // --api-key; NULL: use ZERO_API_KEY, if set
    // `hosts` in lower case, without brackets, ports and a final dot; access_init sets them.
    char names[ARG_MOST_STRINGS][256];
};

// Checks the flags and sets `names`; sets `key` from ZERO_API_KEY if the flag is not given. STATUS_INVALID:
// a name, an origin or the key is malformed.
enum status access_init(struct access *access) MUST_CHECK;
// Returns true if only this machine can reach the numeric address (a loopback address).
bool access_is_local(const char *address);
// Refuses a request that may not use the server: the callback `admit` of struct http_options.
//   context   a struct access
void access_admit(const void *context, struct exchange *exchange);

#endif
