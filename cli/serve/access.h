// Who may ask the server, decided by the head of a request. Any page can make a browser send requests to the
// machine and the network that it runs in, so listening on localhost alone protects nothing. An unknown Host
// may be a foreign name that was pointed at this machine (DNS rebinding); Origin and Sec-Fetch-Site tell of
// other pages than the server's own and those of --cors; forms and plain text are what a browser sends to any
// site without asking it first. Authorization has the key.
#ifndef ZERO_CLI_SERVE_ACCESS_H
#define ZERO_CLI_SERVE_ACCESS_H

#include "base/args.h"
#include "cli/serve/http.h"

struct access {
    const char *host;                  // --host
    struct arg_strings hosts;          // --allow-host
    struct arg_strings origins;        // --cors
    const char *key;                   // --api-key; NULL: ZERO_API_KEY, if there is one
    char names[ARG_MOST_STRINGS][256]; // access_init's: of `hosts`
};

// STATUS_INVALID: a name, an origin or a key that no request can have.
enum status access_init(struct access *access) MUST_CHECK;
bool access_is_local(const char *address); // only this machine reaches it
// The `admit` of struct http_options. context: a struct access.
void access_admit(const void *context, struct exchange *exchange);

#endif
