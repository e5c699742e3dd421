// An HTTP server in which one thread, the caller's, answers all requests, in any order and piece by piece. It
// hides libmicrohttpd and its locks. libmicrohttpd implements the protocol with one thread per connection.
// Such a thread only moves bytes: it collects a whole request for http_next, and sends what the answering
// thread has written.
//
// A connection is closed if its client takes longer than
// - 10 s (or `timeout_s`, if less) to send the headers of its first request, or of the next one
// - `timeout_s` to send the body of a request, or to take the rest of its answer
// A client that leaves is noticed within half a second.
#ifndef ZERO_CLI_SERVE_HTTP_H
#define ZERO_CLI_SERVE_HTTP_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

// Why a request is refused, as OpenAI's error object states it.
struct api_error {
    int code;          // HTTP status; 0: no error
    const char *type;  // such as "invalid_request_error"
    const char *name;  // the object's "code", such as "model_not_found", or NULL
    const char *param; // the member of the request that is wrong, or NULL
    char message[512];
};
// Fills in an error; `type` follows from `code`. Always returns false.
bool api_refuse(struct api_error *error, int code, const char *name, const char *param, const char *format,
                ...) __attribute__((format(printf, 5, 6)));

struct exchange;
struct http_options {
    const char *host; // a name or an address to listen on
    int port;         // 0: any free port
    int max_connections, max_per_address;
    size_t max_body;  // maximum bytes of a request's body
    double timeout_s; // time for a client to send the body of a request, or to take its answer
    // Called on the connection's thread once the headers of a request have arrived. To refuse the request,
    // fill in its `error`.
    void (*admit)(const void *context, struct exchange *exchange);
    const void *context;
};

struct http_server;
// Starts to listen. STATUS_INVALID: the address is unknown or not this machine's, or the port is in use or
// not allowed.
enum status http_start(const struct http_options *options, struct http_server **out) MUST_CHECK;
int http_port(const struct http_server *server);            // the port that it listens on
const char *http_address(const struct http_server *server); // the numeric address that it listens on
int http_n_connections(struct http_server *server);
// Stops accepting connections; open connections continue.
void http_quiesce(struct http_server *server);
// Waits until all answers are sent, for at most `seconds`. Then closes all connections and frees the server.
// All exchanges must have been released.
void http_stop(struct http_server *server, double seconds);

// ---- one request and its answer

struct link; // a connection
struct exchange {
    char *method, *path;     // path: without the query, and without the scheme and host of an absolute target
    char *host;              // the host of an absolute target, else the Host header; NULL: there is neither
    const char *address;     // the numeric address that the server listens on
    const char *cors_origin; // set by `admit`: the origin whose page may read the answer, or NULL
    struct api_error error;  // if error.code is not 0: answer with this error. The body is then empty
    struct text body;
    double began_s; // when the last byte of the request arrived (clock_monotonic_s)
    // The members below are private to http.c.
    struct http_server *server;
    struct link *link; // the request's connection; NULL once the connection is done with the request
    int references;    // 1 for the connection, and 1 for the answering thread until exchange_release
    struct MHD_Connection *connection;
    bool closes;                       // the connection is closed after the answer
    bool answered, streams, ended;     // the answer has begun; it is a stream; the stream is complete
    bool gone, released;               // the client left or has its answer; exchange_release was called
    int code;                          // HTTP status of the answer
    const char *type, *header, *value; // the arguments of exchange_answer
    struct text out;                   // bytes of the answer
    size_t out_sent;                   // if it is a stream: how many of these bytes have been sent
    pthread_cond_t changed;            // signals changes of the answer to the connection's thread
    struct exchange *next;             // the next request in the queue of http_next
};

// Returns the next request that is complete or refused; waits for it for at most `seconds`. NULL: none
// arrived. Also closes slow connections, so call it at least once per second.
struct exchange *http_next(struct http_server *server, double seconds);
bool exchange_is_gone(struct exchange *exchange); // true once the client has left or has its answer

// Returns a header of the request, or NULL. Call it from `admit` only.
const char *exchange_header(const struct exchange *exchange, const char *name);

// Sends a complete answer of `n_bytes` bytes, which are copied.
//   type            the content type: a constant string
//   header, value   an additional header: constant strings, or NULL
void exchange_answer(struct exchange *exchange, int code, const char *type, const char *header,
                     const char *value, const char *bytes, size_t n_bytes);
// Send an answer piece by piece, with status 200: call begin once, write as often as needed, and end once.
void exchange_begin_stream(struct exchange *exchange, const char *type);
void exchange_write(struct exchange *exchange, const char *bytes, size_t n_bytes);
void exchange_end_stream(struct exchange *exchange);
// Ends the answering thread's use of the exchange. If no answer has begun, the connection is closed.
void exchange_release(struct exchange *exchange);

#endif
