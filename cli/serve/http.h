// An HTTP server whose requests are answered by one thread, in any order and piece by piece. libmicrohttpd
// does the protocol with a thread per connection, which only moves bytes: it collects a whole request for
// http_next, and sends what the answering thread has written. A connection that is idle, or slow to send its
// request or to take its answer, is closed after `timeout_s`; a client that leaves is noticed within half a
// second.
#ifndef ZERO_CLI_SERVE_HTTP_H
#define ZERO_CLI_SERVE_HTTP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct http_options {
    const char *host; // a name or an address to listen on
    int port;         // 0: any free one
    int max_connections;
    size_t max_body; // bytes; a larger one gets HTTP_TOO_LARGE
    double timeout_s;
    // The body and type of the answer to a request that is too large.
    const char *too_large, *too_large_type;
};

struct http_server;
// Starts to listen. STATUS_INVALID: the address is unknown or not of this machine, the port is in use or not
// allowed.
enum status http_start(const struct http_options *options, struct http_server **out) MUST_CHECK;
int http_port(const struct http_server *server);
int http_n_connections(struct http_server *server);
// Stops accepting connections; those that are open go on.
void http_quiesce(struct http_server *server);
// Waits until all answers are sent, for at most `seconds`, closes what is left, and frees the server. All
// exchanges must have been released.
void http_stop(struct http_server *server, double seconds);

// ---- one request and its answer

struct exchange;
// The next complete request; waits for one for at most `seconds`. NULL: none came. Also looks after the
// connections: call it at least every second.
struct exchange *http_next(struct http_server *server, double seconds);
const char *exchange_method(const struct exchange *exchange);
const char *exchange_path(const struct exchange *exchange); // without the query
const char *exchange_body(const struct exchange *exchange, size_t *n_bytes);
double exchange_began_s(const struct exchange *exchange); // when it arrived whole, clock_monotonic_s
bool exchange_is_gone(struct exchange *exchange);         // the client closed the connection

// Answers with `n_bytes` bytes, which are copied.
//   header, value  one header more, or NULL
void exchange_answer(struct exchange *exchange, int code, const char *type, const char *header,
                     const char *value, const char *bytes, size_t n_bytes);
// Answers piece by piece: begin, write as often as needed, then end. A failure to allocate cuts the answer.
void exchange_begin_stream(struct exchange *exchange, const char *type);
void exchange_write(struct exchange *exchange, const char *bytes, size_t n_bytes);
void exchange_end_stream(struct exchange *exchange);
// The last use of the exchange. One without an answer is closed.
void exchange_release(struct exchange *exchange);

#endif
