// An HTTP server whose requests are answered by one thread, in any order and piece by piece. It hides
// libmicrohttpd, which does the protocol with a thread per connection, and its locks: these threads only move
// bytes. One collects a whole request for http_next, and sends what the answering thread has written. A
// connection that is idle for 10 s, or slow to send its request's head, is closed, and after `timeout_s` one
// that is slow to send the rest or to take its answer; a client that leaves is noticed within half a second.
#ifndef ZERO_CLI_SERVE_HTTP_H
#define ZERO_CLI_SERVE_HTTP_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

// An answer that refuses a request. OpenAI's error object has these members.
struct api_error {
    int code; // HTTP's; 0: none
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
    // Looks at a request whose head has arrived, on its connection's thread. To refuse it, fills in its
    // `error`.
    void (*admit)(const void *context, struct exchange *exchange);
    const void *context;
};

struct http_server;
// Starts to listen. STATUS_INVALID: the address is unknown or not of this machine, the port is in use or not
// allowed.
enum status http_start(const struct http_options *options, struct http_server **out) MUST_CHECK;
int http_port(const struct http_server *server);
const char *http_address(const struct http_server *server); // that it listens on, in digits
int http_n_connections(struct http_server *server);
// Stops accepting connections; those that are open go on.
void http_quiesce(struct http_server *server);
// Waits until all answers are sent, for at most `seconds`, closes what is left, and frees the server. All
// exchanges must have been released.
void http_stop(struct http_server *server, double seconds);

// ---- one request and its answer

struct link; // a connection
struct exchange {
    char *method, *path;     // path: without the query, and without the scheme and host of an absolute target
    char *host;              // of such a target, else of the header; NULL: HTTP/1.0 without it
    const char *address;     // the server's
    const char *cors_origin; // set by `admit`: the origin whose page may read the answer, or NULL
    struct api_error error;  // code other than 0: the request is refused with this, and has no body
    struct text body;
    double began_s; // when it arrived whole, clock_monotonic_s
    // What follows is http.c's.
    struct http_server *server;
    struct link *link; // NULL once the request is over for the connection
    int references;    // of the connection and the answering thread
    struct MHD_Connection *connection;
    bool closes, answered, streams, ended, gone, released;
    int code;
    const char *type, *header, *value;
    struct text out; // of which out_sent bytes are sent
    size_t out_sent;
    pthread_cond_t changed;
    struct exchange *next; // in the queue of http_next
};

// The next complete request; waits for one for at most `seconds`. NULL: none came. Also looks after the
// connections: call it at least every second.
struct exchange *http_next(struct http_server *server, double seconds);
bool exchange_is_gone(struct exchange *exchange); // the client closed the connection

// A header of the request; NULL: it has none. For `admit` only.
const char *exchange_header(const struct exchange *exchange, const char *name);

// Answers with `n_bytes` bytes, which are copied.
//   type, header, value   constant strings; header and value: one header more, or NULL
void exchange_answer(struct exchange *exchange, int code, const char *type, const char *header,
                     const char *value, const char *bytes, size_t n_bytes);
// Answers piece by piece: begin, write as often as needed, then end.
void exchange_begin_stream(struct exchange *exchange, const char *type);
void exchange_write(struct exchange *exchange, const char *bytes, size_t n_bytes);
void exchange_end_stream(struct exchange *exchange);
// The last use of the exchange. One without an answer is closed.
void exchange_release(struct exchange *exchange);

#endif
