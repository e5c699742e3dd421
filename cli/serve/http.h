// An HTTP server whose requests are answered by one thread, in any order and piece by piece. It hides
// libmicrohttpd and its locks. libmicrohttpd implements the protocol with one thread per connection. Such a
// thread only moves bytes: it collects a whole request for http_next, and sends what the answering thread has
// written.
// A connection is closed after 10 s if it is idle or slow to send the headers, and after `timeout_s` if it is
// slow to send the body or to take its answer. A client that leaves is noticed within half a second.
#ifndef ZERO_CLI_SERVE_HTTP_H
#define ZERO_CLI_SERVE_HTTP_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

// The reason for which a request is refused, with the members of OpenAI's error object.
struct api_error {
    int code; // HTTP status; 0: no error
    const char *type, *name, *param;
    char message[512];
};
// Fills in an error; returns false.
bool api_refuse(struct api_error *error, int code, const char *name, const char *param, const char *format,
                ...) __attribute__((format(printf, 5, 6)));

struct exchange;
struct http_options {
    const char *host; // a name or an address to listen on
    int port;         // 0: any free one
    int max_connections, max_per_address;
    size_t max_body; // bytes
    double timeout_s;
    // Called on the connection's thread once the headers of a request have arrived. To refuse the request,
    // fill in its `error`.
    void (*admit)(const void *context, struct exchange *exchange);
    const void *context;
};

struct http_server;
// Starts to listen. STATUS_INVALID: the address is unknown or not this machine's, or the port is in use or
// not allowed.
enum status http_start(const struct http_options *options, struct http_server **out) MUST_CHECK;
int http_port(const struct http_server *server);
const char *http_address(const struct http_server *server); // the address that it listens on, in digits
int http_n_connections(struct http_server *server);
// Stops accepting connections; open connections continue.
void http_quiesce(struct http_server *server);
// Waits for at most `seconds` until all answers are sent, closes the remaining connections, and frees the
// server. All exchanges must have been released.
void http_stop(struct http_server *server, double seconds);

// ---- one request and its answer

struct link; // a connection
struct exchange {
    char *method, *path;     // path: without the query, and without the scheme and host of an absolute target
    char *host;              // from an absolute target, else from the Host header; NULL: HTTP/1.0 without one
    const char *address;     // the server's
    const char *cors_origin; // set by `admit`: the origin whose page may read the answer, or NULL
    struct api_error error;  // if `code` is not 0, the request is refused with this error, and has no body
    struct text body;
    double began_s; // when it arrived whole, clock_monotonic_s
    // The members below are private to http.c.
    struct http_server *server;
    struct link *link; // NULL once the request is over for the connection
    int references;    // held by the connection and the answering thread
    struct MHD_Connection *connection;
    bool closes, answered, streams, ended, gone, released;
    int code;
    const char *type, *header, *value;
    struct text out; // the answer; the first out_sent bytes are sent
    size_t out_sent;
    pthread_cond_t changed;
    struct exchange *next; // in the queue of http_next
};

// Returns the next complete request, waiting for at most `seconds`; NULL: none arrived. Also closes slow
// connections, so call it at least once per second.
struct exchange *http_next(struct http_server *server, double seconds);
bool exchange_is_gone(struct exchange *exchange); // the client closed the connection

// A header of the request, or NULL. Call it from `admit` only.
const char *exchange_header(const struct exchange *exchange, const char *name);

// Sends a complete answer of `n_bytes` bytes, which are copied.
//   type, header, value   constant strings; header and value: an additional header, or NULL
void exchange_answer(struct exchange *exchange, int code, const char *type, const char *header,
                     const char *value, const char *bytes, size_t n_bytes);
// Answers piece by piece: begin, write as often as needed, then end.
void exchange_begin_stream(struct exchange *exchange, const char *type);
void exchange_write(struct exchange *exchange, const char *bytes, size_t n_bytes);
void exchange_end_stream(struct exchange *exchange);
// Ends the use of the exchange. If it has no answer, its connection is closed.
void exchange_release(struct exchange *exchange);

#endif
