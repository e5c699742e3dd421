// Decides from the headers of a request who may use the server. Any web page can make a browser send requests
// to its own machine and network, so listening on localhost alone protects nothing. These headers are
// checked:
// - Host: an unknown name may have been pointed at this machine by an attacker (DNS rebinding).
// - Origin and Sec-Fetch-Site: reveal pages other than the server's own and those of --cors.
// - Content-Type: browsers send forms and plain text to any site without a preflight request.
// - Authorization: has the API key.
#ifndef ZERO_CLI_SERVE_ACCESS_H
#define ZERO_CLI_SERVE_ACCESS_H

#include "base/args.h"
#include "cli/serve/http.h"

struct access {
    const char *host;                  // --host
    struct arg_strings hosts;          // --allow-host
    struct arg_strings origins;        // --cors
    const char *key;                   // --api-key; NULL: use ZERO_API_KEY, if set
    char names[ARG_MOST_STRINGS][256]; // set by access_init from `hosts`
};

// Checks and completes the members. STATUS_INVALID: a name, an origin or a key is malformed.
enum status access_init(struct access *access) MUST_CHECK;
bool access_is_local(const char *address); // only this machine can reach the address
// For `admit` of struct http_options. context: a struct access.
void access_admit(const void *context, struct exchange *exchange);

#endif
