// Each connection has a thread of libmicrohttpd, which waits in wait_for_change while its request is
// answered. One lock protects all exchanges. It is held for microseconds only.
#include "cli/serve/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"

#define CONNECTION_BYTES (32 * 1024) // bytes of memory per connection; a request's headers must fit in them
#define STREAM_BLOCK     (16 * 1024) // maximum bytes of a stream to send at once
#define LOOK_SECONDS     0.25        // time between two checks whether a client has left
#define HEAD_SECONDS     10          // maximum time for a client to send all headers of a request

// A connection.
struct link {
    int socket;
    // When the server began to wait for the client (clock_monotonic_s). 0: the client waits for the server.
    double since_s;
    struct exchange *exchange; // the current request; NULL between requests
    struct link *previous, *next;
};

struct http_server {
    struct http_options options;
    struct MHD_Daemon *daemon;
    int socket, port;
    char address[NI_MAXHOST];
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    struct exchange *first, *last; // queue of the requests that http_next returns
    struct link *links;
    int n_links;
    bool stopping;
};

static void condition_init(pthread_cond_t *condition) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

// Waits for a signal for at most `seconds`. Returns false on timeout.
static bool condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    long long ns = until.tv_nsec + (long long)(seconds * 1e9);
    until = (struct timespec){until.tv_sec + ns / 1000000000, ns % 1000000000};
    return pthread_cond_timedwait(condition, lock, &until) == 0;
}

// ---- on a connection's thread

// Drops one reference, and frees the exchange with the last one. Call with the lock held.
static void drop(struct exchange *exchange) {
    if (--exchange->references > 0)
        return;
    free(exchange->method);
    free(exchange->path);
    free(exchange->host);
    text_free(&exchange->body);
    text_free(&exchange->out);
    pthread_cond_destroy(&exchange->changed);
    free(exchange);
}

static struct exchange *exchange_new(struct http_server *server, struct MHD_Connection *connection,
                                     const char *path, const char *method) {
    struct exchange *exchange = allocate(1, sizeof *exchange);
    condition_init(&exchange->changed);
    exchange->server = server;
    exchange->connection = connection;
    exchange->address = server->address;
    exchange->references = 1;
    exchange->method = copy_string(method);
    exchange->path = copy_string(path);
    exchange->link = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    exchange->link->exchange = exchange;
    exchange->link->since_s = clock_monotonic_s(); // from now on, the server waits for the body
    return exchange;
}

bool api_refuse(struct api_error *error, int code, const char *name, const char *param, const char *format,
                ...) {
    va_list arguments;
    *error = (struct api_error){.code = code,
                                .type = code == 429  ? "rate_limit_error"
                                        : code < 500 ? "invalid_request_error"
                                                     : "server_error",
                                .name = name,
                                .param = param};
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    return false;
}

const char *exchange_header(const struct exchange *exchange, const char *name) {
    return MHD_lookup_connection_value(exchange->connection, MHD_HEADER_KIND, name);
}

// Refuses header names that are empty or have a space or tab ("Content-Length : 5"), and a second header of a
// name in `once`. A proxy may interpret such headers differently and then see other requests than this server
// (request smuggling; RFC 9112, 11.2).
static enum MHD_Result check_header(void *context, enum MHD_ValueKind kind, const char *name,
                                    const char *value) {
    static const char *const once[] = {"Host",         "Content-Length", "Transfer-Encoding",
                                       "Content-Type", "Authorization",  "Origin"};
    struct exchange *exchange = context;
    (void)kind;
    bool good = name[0] && !name[strcspn(name, " \t")];
    for (size_t i = 0; i < sizeof once / sizeof *once; i++)
        good &= strcasecmp(name, once[i]) != 0 || exchange_header(exchange, name) == value;
    return good || api_refuse(&exchange->error, 400, NULL, NULL,
                              "the header \"%.100s\" is repeated or has an invalid name", name);
}

static void check_length(struct exchange *exchange, bool http10) {
    const size_t max_body = exchange->server->options.max_body;
    const char *length = exchange_header(exchange, "Content-Length");
    const char *encoding = exchange_header(exchange, "Transfer-Encoding");
    if (encoding && (length || http10 || strcasecmp(encoding, "chunked") != 0))
        api_refuse(&exchange->error, 400, NULL, NULL,
                   "Transfer-Encoding: expected \"chunked\" in HTTP/1.1, without Content-Length");
    else if ((length && strtoull(length, NULL, 10) > max_body) || exchange->body.length > max_body)
        api_refuse(&exchange->error, 413, NULL, NULL, "the request is larger than %zu bytes", max_body);
}

// Sets exchange->host (RFC 9112, 3.2.2). If the request's target is absolute, http://HOST/PATH, takes the
// host from it and reduces exchange->path to /PATH; else takes it from the Host header.
static void take_host(struct exchange *exchange) {
    char *path = exchange->path;
    const bool absolute = strncasecmp(path, "http://", 7) == 0;
    const char *host = absolute ? path + 7 : exchange_header(exchange, "Host");
    if (host)
        exchange->host = copy_bytes(host, absolute ? strcspn(host, "/") : strlen(host));
    if (absolute) {
        const char *rest = path + 7 + strlen(exchange->host);
        memmove(path, *rest ? rest : "/", *rest ? strlen(rest) + 1 : 2);
    }
}

// Checks the headers of a request. Sets exchange->closes if the request is refused without reading its body,
// so that the connection cannot be used for another one. This happens if a header is malformed, if the body
// is too large, or if a refused client waits for permission to send the body (Expect: 100-continue).
static void take_head(struct exchange *exchange, const char *version) {
    const bool http10 = strcmp(version, "HTTP/1.0") == 0;
    take_host(exchange);
    MHD_get_connection_values(exchange->connection, MHD_HEADER_KIND, check_header, exchange);
    if (!exchange->error.code)
        check_length(exchange, http10);
    exchange->closes = exchange->error.code;
    if (!exchange->error.code && !exchange->host && !http10)
        api_refuse(&exchange->error, 400, NULL, NULL, "the request has no header Host");
    if (!exchange->error.code)
        exchange->server->options.admit(exchange->server->options.context, exchange);
    exchange->closes |= exchange->error.code && exchange_header(exchange, "Expect");
}

// Returns true if the answer will not be continued, or nobody will read it. Call with the lock held.
static bool is_over(const struct exchange *exchange) {
    return exchange->server->stopping || exchange->gone || (exchange->released && !exchange->answered);
}

// Waits until the answering thread signals a change. If it does not for LOOK_SECONDS, checks whether the
// client has left. Call with the lock held.
static void wait_for_change(struct exchange *exchange) {
    struct pollfd poll_socket = {.fd = exchange->link->socket, .events = POLLRDHUP};
    if (!condition_wait(&exchange->changed, &exchange->server->lock, LOOK_SECONDS))
        exchange->gone |= poll(&poll_socket, 1, 0) > 0;
}

// libmicrohttpd's callback for the next bytes of a stream: copies up to `room` bytes to `out`. Waits if none
// are written yet.
static ssize_t read_stream(void *context, uint64_t position, char *out, size_t room) {
    struct exchange *exchange = context;
    struct text *written = &exchange->out;
    ssize_t result = MHD_CONTENT_READER_END_WITH_ERROR;
    (void)position;
    pthread_mutex_lock(&exchange->server->lock);
    while (written->length == exchange->out_sent && !exchange->ended && !is_over(exchange))
        wait_for_change(exchange);
    size_t n = written->length - exchange->out_sent;
    n = n < room ? n : room;
    if (n > 0 && !is_over(exchange)) {
        memcpy(out, written->data + exchange->out_sent, n);
        exchange->out_sent += n;
        if (exchange->out_sent == written->length)
            exchange->out_sent = written->length = 0;
        result = (ssize_t)n;
    } else if (exchange->ended && !is_over(exchange)) {
        result = MHD_CONTENT_READER_END_OF_STREAM;
    }
    pthread_mutex_unlock(&exchange->server->lock);
    return result;
}

// Adds the headers with which a browser lets a page of another origin send the request and read the answer
// (Fetch, 3.3).
static void add_cors(const struct exchange *exchange, struct MHD_Response *response) {
    const char *headers = exchange_header(exchange, "Access-Control-Request-Headers");
    MHD_add_response_header(response, "Vary", "Origin");
    if (!exchange->cors_origin)
        return;
    MHD_add_response_header(response, "Access-Control-Allow-Origin", exchange->cors_origin);
    if (strcmp(exchange->method, "OPTIONS") != 0)
        return;
    MHD_add_response_header(response, "Access-Control-Allow-Methods", "GET, POST");
    MHD_add_response_header(response, "Access-Control-Max-Age", "600");
    if (headers)
        MHD_add_response_header(response, "Access-Control-Allow-Headers", headers);
}

static enum MHD_Result send_answer(struct exchange *exchange, struct MHD_Connection *connection) {
    struct MHD_Response *response =
        exchange->streams
            ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, exchange, NULL)
            : MHD_create_response_from_buffer(exchange->out.length, exchange->out.data,
                                              MHD_RESPMEM_MUST_COPY);
    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, "Content-Type", exchange->type);
    MHD_add_response_header(response, "Cache-Control", "no-store");
    if (exchange->closes)
        MHD_add_response_header(response, "Connection", "close");
    add_cors(exchange, response);
    if (exchange->header)
        MHD_add_response_header(response, exchange->header, exchange->value);
    enum MHD_Result result = MHD_queue_response(connection, (unsigned)exchange->code, response);
    MHD_destroy_response(response);
    return result;
}

// Hands a complete or refused request to the answering thread, and waits for the answer. Call with the lock
// held.
static enum MHD_Result pass_on(struct exchange *exchange, struct MHD_Connection *connection) {
    struct http_server *server = exchange->server;
    exchange->began_s = clock_monotonic_s();
    exchange->link->since_s = 0;
    exchange->references++;
    *(server->last ? &server->last->next : &server->first) = exchange;
    server->last = exchange;
    pthread_cond_signal(&server->arrived);
    while (!exchange->answered && !is_over(exchange))
        wait_for_change(exchange);
    return is_over(exchange) ? MHD_NO : send_answer(exchange, connection);
}

static enum MHD_Result handle(void *context, struct MHD_Connection *connection, const char *path,
                              const char *method, const char *version, const char *data, size_t *n_bytes,
                              void **of_request) {
    struct http_server *server = context;
    struct exchange *exchange = *of_request;
    enum MHD_Result result = MHD_YES;
    pthread_mutex_lock(&server->lock);
    if (!exchange) {
        *of_request = exchange = exchange_new(server, connection, path, method);
        take_head(exchange, version);
        if (exchange->closes)
            result = pass_on(exchange, connection);
    } else if (*n_bytes > 0) {
        if (!exchange->error.code) {
            text_add_bytes(&exchange->body, data, *n_bytes);
            check_length(exchange, false);
        }
        if (exchange->error.code)
            text_free(&exchange->body);
        *n_bytes = 0;
    } else {
        result = pass_on(exchange, connection);
    }
    pthread_mutex_unlock(&server->lock);
    return result;
}

static void complete(void *context, struct MHD_Connection *connection, void **of_request,
                     enum MHD_RequestTerminationCode why) {
    struct http_server *server = context;
    struct exchange *exchange = *of_request;
    (void)connection, (void)why;
    if (!exchange)
        return;
    pthread_mutex_lock(&server->lock);
    exchange->gone = true;
    exchange->link->exchange = NULL;
    exchange->link->since_s = clock_monotonic_s();
    exchange->link = NULL;
    drop(exchange);
    pthread_mutex_unlock(&server->lock);
    *of_request = NULL;
}

static void connection_changes(void *context, struct MHD_Connection *connection, void **of_socket,
                               enum MHD_ConnectionNotificationCode what) {
    struct http_server *server = context;
    struct link *link = *of_socket;
    pthread_mutex_lock(&server->lock);
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        *of_socket = link = allocate(1, sizeof *link);
        link->socket = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        link->since_s = clock_monotonic_s();
        link->next = server->links;
        if (link->next)
            link->next->previous = link;
        server->links = link;
        server->n_links++;
    } else {
        *(link->previous ? &link->previous->next : &server->links) = link->next;
        if (link->next)
            link->next->previous = link->previous;
        server->n_links--;
        free(link);
        *of_socket = NULL;
    }
    pthread_mutex_unlock(&server->lock);
}

// ---- starting and stopping

static enum status listen_on(struct http_server *server, const struct addrinfo *address) {
    int one = 1;
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound;
    char port[16];
    server->socket = socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC, address->ai_protocol);
    if (server->socket < 0)
        return FAIL(STATUS_FAILED, "cannot create a socket: %s", strerror(errno));
    setsockopt(server->socket, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(server->socket, address->ai_addr, address->ai_addrlen) != 0 ||
        listen(server->socket, SOMAXCONN) != 0)
        return FAIL(STATUS_INVALID, "cannot listen on %s, port %d: %s%s", server->options.host,
                    server->options.port, strerror(errno),
                    errno == EADDRINUSE ? "; choose another with --port, or 0 for any free one" : "");
    if (getsockname(server->socket, (struct sockaddr *)&bound, &length) != 0 ||
        getnameinfo((struct sockaddr *)&bound, length, server->address, sizeof server->address, port,
                    sizeof port, NI_NUMERICSERV | NI_NUMERICHOST) != 0)
        return FAIL(STATUS_FAILED, "cannot find the port that was bound");
    server->port = atoi(port);
    return STATUS_OK;
}

static enum status open_socket(struct http_server *server) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *addresses;
    char port[16];
    snprintf(port, sizeof port, "%d", server->options.port);
    int error = getaddrinfo(server->options.host, port, &hints, &addresses);
    if (error)
        return FAIL(STATUS_INVALID,
                    "cannot listen on \"%s\": %s; expected an address or name of this machine",
                    server->options.host, gai_strerror(error));
    enum status status = listen_on(server, addresses);
    freeaddrinfo(addresses);
    return status;
}

static enum status start(struct http_server *server) {
    pthread_mutex_init(&server->lock, NULL);
    condition_init(&server->arrived);
    TRY(open_socket(server));
    server->daemon = MHD_start_daemon(
        MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_ITC, 0, NULL,
        NULL, handle, server, MHD_OPTION_LISTEN_SOCKET, server->socket, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)server->options.max_connections, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
        (unsigned)server->options.max_per_address, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)CONNECTION_BYTES, MHD_OPTION_NOTIFY_COMPLETED, complete, server, MHD_OPTION_NOTIFY_CONNECTION,
        connection_changes, server, MHD_OPTION_END);
    if (!server->daemon)
        return FAIL(STATUS_FAILED, "libmicrohttpd cannot start: %s", strerror(errno));
    return STATUS_OK;
}

static void server_delete(struct http_server *server) {
    if (server->socket >= 0)
        close(server->socket);
    pthread_cond_destroy(&server->arrived);
    pthread_mutex_destroy(&server->lock);
    free(server);
}

enum status http_start(const struct http_options *options, struct http_server **out) {
    struct http_server *server = allocate(1, sizeof *server);
    server->options = *options;
    server->socket = -1;
    enum status status = start(server);
    if (status == STATUS_OK)
        *out = server;
    else
        server_delete(server);
    return status;
}

int http_port(const struct http_server *server) {
    return server->port;
}

const char *http_address(const struct http_server *server) {
    return server->address;
}

int http_n_connections(struct http_server *server) {
    pthread_mutex_lock(&server->lock);
    int n = server->n_links;
    pthread_mutex_unlock(&server->lock);
    return n;
}

void http_quiesce(struct http_server *server) {
    MHD_quiesce_daemon(server->daemon);
    close(server->socket);
    server->socket = -1;
}

// ---- on the answering thread

// Closes connections whose clients take too long (see http.h). Call with the lock held.
static void close_slow(struct http_server *server) {
    double now = clock_monotonic_s(), timeout_s = server->options.timeout_s;
    for (const struct link *link = server->links; link; link = link->next) {
        const bool waits_for_head = !link->exchange && timeout_s > HEAD_SECONDS;
        if (link->since_s > 0 && now - link->since_s > (waits_for_head ? HEAD_SECONDS : timeout_s))
            shutdown(link->socket, SHUT_RDWR);
    }
}

struct exchange *http_next(struct http_server *server, double seconds) {
    pthread_mutex_lock(&server->lock);
    close_slow(server);
    while (!server->first && seconds > 0)
        if (!condition_wait(&server->arrived, &server->lock, seconds))
            break;
    struct exchange *exchange = server->first;
    if (exchange) {
        server->first = exchange->next;
        if (!server->first)
            server->last = NULL;
    }
    pthread_mutex_unlock(&server->lock);
    return exchange;
}

static bool all_sent(struct http_server *server) {
    bool sent = true;
    pthread_mutex_lock(&server->lock);
    close_slow(server);
    for (const struct link *link = server->links; link; link = link->next)
        sent &= !link->exchange || !link->exchange->answered;
    pthread_mutex_unlock(&server->lock);
    return sent;
}

void http_stop(struct http_server *server, double seconds) {
    double until = clock_monotonic_s() + seconds;
    while (!all_sent(server) && clock_monotonic_s() < until)
        poll(NULL, 0, 10);
    pthread_mutex_lock(&server->lock);
    server->stopping = true;
    for (struct link *link = server->links; link; link = link->next)
        if (link->exchange)
            pthread_cond_signal(&link->exchange->changed);
    pthread_mutex_unlock(&server->lock);
    MHD_stop_daemon(server->daemon);
    while (server->first) {
        struct exchange *next = server->first->next;
        drop(server->first);
        server->first = next;
    }
    server_delete(server);
}

bool exchange_is_gone(struct exchange *exchange) {
    pthread_mutex_lock(&exchange->server->lock);
    bool gone = exchange->gone;
    pthread_mutex_unlock(&exchange->server->lock);
    return gone;
}

// Wakes the thread of the connection. Call with the lock held.
//   all   the answer is complete, so from now on the server waits for the client
static void change(struct exchange *exchange, bool all) {
    if (all && exchange->link)
        exchange->link->since_s = clock_monotonic_s();
    pthread_cond_signal(&exchange->changed);
}

void exchange_answer(struct exchange *exchange, int code, const char *type, const char *header,
                     const char *value, const char *bytes, size_t n_bytes) {
    pthread_mutex_lock(&exchange->server->lock);
    exchange->code = code;
    exchange->type = type;
    exchange->header = header;
    exchange->value = value;
    text_add_bytes(&exchange->out, bytes, n_bytes);
    exchange->answered = true;
    change(exchange, true);
    pthread_mutex_unlock(&exchange->server->lock);
}

void exchange_begin_stream(struct exchange *exchange, const char *type) {
    pthread_mutex_lock(&exchange->server->lock);
    exchange->code = MHD_HTTP_OK;
    exchange->type = type;
    exchange->answered = exchange->streams = true;
    change(exchange, false);
    pthread_mutex_unlock(&exchange->server->lock);
}

void exchange_write(struct exchange *exchange, const char *bytes, size_t n_bytes) {
    pthread_mutex_lock(&exchange->server->lock);
    if (!exchange->gone)
        text_add_bytes(&exchange->out, bytes, n_bytes);
    change(exchange, false);
    pthread_mutex_unlock(&exchange->server->lock);
}

void exchange_end_stream(struct exchange *exchange) {
    pthread_mutex_lock(&exchange->server->lock);
    exchange->ended = true;
    change(exchange, true);
    pthread_mutex_unlock(&exchange->server->lock);
}

void exchange_release(struct exchange *exchange) {
    struct http_server *server = exchange->server;
    pthread_mutex_lock(&server->lock);
    exchange->released = true;
    change(exchange, false);
    drop(exchange);
    pthread_mutex_unlock(&server->lock);
}
