// One lock for all exchanges: what it protects takes microseconds. A connection is suspended while there is
// nothing to send, and resumed by the answering thread. libmicrohttpd does not look at suspended connections,
// so http_next polls for clients that have left.
#include "cli/serve/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"

#define CONNECTION_BYTES (32 * 1024) // for the headers of a request
#define STREAM_BLOCK     (16 * 1024)
#define LOOK_SECONDS     0.05 // between two looks at the connections

struct exchange {
    struct http_server *server;
    struct MHD_Connection *connection; // NULL once it is closed or has another request
    struct link *link;
    int references; // of the connection, the answering thread, and a streaming response
    char *method, *path;
    struct text body;
    bool too_large, complete, answered, streams, ended, suspended, gone, released;
    double began_s;
    int code;
    const char *type, *header;
    char *value;
    struct text out; // of which out_sent bytes are sent
    size_t out_sent;
    struct exchange *next; // in the queue of http_next
};

// A connection.
struct link {
    int socket;
    double since_s;            // when it began to wait for the client
    struct exchange *exchange; // NULL between requests
    struct link *previous, *next;
};

struct http_server {
    struct http_options options;
    struct MHD_Daemon *daemon;
    int socket, port;
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    struct exchange *first, *last; // complete requests
    struct link *links;
    int n_links;
    double looked_s;
    bool stopping;
    struct pollfd *polls; // (max_connections)
};

// ---- exchanges; all with the lock held

static void drop(struct exchange *exchange) {
    if (--exchange->references > 0)
        return;
    free(exchange->method);
    free(exchange->path);
    free(exchange->value);
    text_free(&exchange->body);
    text_free(&exchange->out);
    free(exchange);
}

static void wake(struct exchange *exchange) {
    if (exchange->suspended && exchange->connection)
        MHD_resume_connection(exchange->connection);
    exchange->suspended = false;
}

static void suspend(struct exchange *exchange) {
    exchange->suspended = true;
    MHD_suspend_connection(exchange->connection);
}

static void wait_for_client(struct exchange *exchange) {
    if (exchange->link)
        exchange->link->since_s = clock_monotonic_s();
}

// ---- on libmicrohttpd's thread

static struct exchange *exchange_new(struct http_server *server, struct MHD_Connection *connection,
                                     const char *path, const char *method) {
    struct exchange *exchange = calloc(1, sizeof *exchange);
    if (!exchange)
        return NULL;
    *exchange = (struct exchange){.server = server,
                                  .connection = connection,
                                  .references = 1,
                                  .method = strdup(method),
                                  .path = strdup(path)};
    exchange->link = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    if (!exchange->method || !exchange->path || !exchange->link) {
        drop(exchange);
        return NULL;
    }
    exchange->link->exchange = exchange;
    exchange->link->since_s = clock_monotonic_s(); // for the body
    return exchange;
}

static enum MHD_Result send_too_large(const struct http_server *server, struct MHD_Connection *connection) {
    const char *body = server->options.too_large;
    struct MHD_Response *response =
        MHD_create_response_from_buffer(strlen(body), (void *)(size_t)body, MHD_RESPMEM_PERSISTENT);
    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, "Content-Type", server->options.too_large_type);
    MHD_add_response_header(response, "Connection", "close");
    enum MHD_Result result = MHD_queue_response(connection, MHD_HTTP_CONTENT_TOO_LARGE, response);
    MHD_destroy_response(response);
    return result;
}

static bool announces_too_much(const struct http_server *server, struct MHD_Connection *connection) {
    const char *length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Length");
    return length && strtoull(length, NULL, 10) > server->options.max_body;
}

// Sends what was written; without that, suspends the connection.
static ssize_t read_stream(void *context, uint64_t position, char *out, size_t room) {
    struct exchange *exchange = context;
    struct http_server *server = exchange->server;
    ssize_t result = 0;
    (void)position;
    pthread_mutex_lock(&server->lock);
    size_t n = exchange->out.length - exchange->out_sent;
    n = n < room ? n : room;
    if (n > 0) {
        memcpy(out, exchange->out.data + exchange->out_sent, n);
        exchange->out_sent += n;
        if (exchange->out_sent == exchange->out.length)
            exchange->out_sent = exchange->out.length = 0;
        result = (ssize_t)n;
    } else if (exchange->ended && !exchange->out.failed) {
        result = MHD_CONTENT_READER_END_OF_STREAM;
    } else if (server->stopping || exchange->gone || exchange->released) {
        result = MHD_CONTENT_READER_END_WITH_ERROR;
    } else {
        suspend(exchange);
    }
    pthread_mutex_unlock(&server->lock);
    return result;
}

static void free_stream(void *context) {
    struct exchange *exchange = context;
    struct http_server *server = exchange->server;
    pthread_mutex_lock(&server->lock);
    drop(exchange);
    pthread_mutex_unlock(&server->lock);
}

// With the lock held.
static enum MHD_Result send_answer(struct exchange *exchange) {
    struct MHD_Response *response;
    if (exchange->streams) {
        exchange->references++;
        response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, exchange,
                                                     free_stream);
        if (!response)
            exchange->references--;
    } else {
        response =
            MHD_create_response_from_buffer(exchange->out.length, exchange->out.data, MHD_RESPMEM_MUST_COPY);
    }
    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, "Content-Type", exchange->type);
    MHD_add_response_header(response, "Cache-Control", "no-store");
    if (exchange->header)
        MHD_add_response_header(response, exchange->header, exchange->value);
    enum MHD_Result result = MHD_queue_response(exchange->connection, (unsigned)exchange->code, response);
    // Destroys the response if that was not queued, which calls free_stream.
    pthread_mutex_unlock(&exchange->server->lock);
    MHD_destroy_response(response);
    pthread_mutex_lock(&exchange->server->lock);
    return result;
}

// The whole request is here, or the connection was resumed.
static enum MHD_Result go_on(struct http_server *server, struct exchange *exchange) {
    if (server->stopping || exchange->gone)
        return MHD_NO;
    if (exchange->answered)
        return exchange->out.failed ? MHD_NO : send_answer(exchange);
    if (exchange->released)
        return MHD_NO;
    if (!exchange->complete) {
        exchange->complete = true;
        exchange->began_s = clock_monotonic_s();
        exchange->references++;
        *(server->last ? &server->last->next : &server->first) = exchange;
        server->last = exchange;
        pthread_cond_signal(&server->arrived);
    }
    suspend(exchange);
    return MHD_YES;
}

static enum MHD_Result handle(void *context, struct MHD_Connection *connection, const char *path,
                              const char *method, const char *version, const char *data, size_t *n_bytes,
                              void **of_request) {
    struct http_server *server = context;
    struct exchange *exchange = *of_request;
    enum MHD_Result result = MHD_YES;
    (void)version;
    pthread_mutex_lock(&server->lock);
    if (!exchange) {
        *of_request = exchange = exchange_new(server, connection, path, method);
        if (!exchange)
            result = MHD_NO;
        else if (announces_too_much(server, connection))
            result = send_too_large(server, connection);
    } else if (*n_bytes > 0) {
        exchange->too_large |= *n_bytes > server->options.max_body - exchange->body.length;
        if (exchange->too_large)
            text_free(&exchange->body);
        else
            text_add_bytes(&exchange->body, data, *n_bytes);
        result = exchange->body.failed ? MHD_NO : MHD_YES;
        *n_bytes = 0;
    } else {
        result = exchange->too_large ? send_too_large(server, connection) : go_on(server, exchange);
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
    exchange->connection = NULL;
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
        link = calloc(1, sizeof *link); // NULL: exchange_new refuses requests
        *of_socket = link;
        if (link) {
            link->socket = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
            link->since_s = clock_monotonic_s();
            link->next = server->links;
            if (link->next)
                link->next->previous = link;
            server->links = link;
            server->n_links++;
        }
    } else if (link) {
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
        return FAIL(STATUS_FAILED, "cannot make a socket: %s", strerror(errno));
    setsockopt(server->socket, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(server->socket, address->ai_addr, address->ai_addrlen) != 0 ||
        listen(server->socket, SOMAXCONN) != 0)
        return FAIL(STATUS_INVALID, "cannot listen on %s, port %d: %s%s", server->options.host,
                    server->options.port, strerror(errno),
                    errno == EADDRINUSE ? "; choose another with --port, or 0 for any free one" : "");
    if (getsockname(server->socket, (struct sockaddr *)&bound, &length) != 0 ||
        getnameinfo((struct sockaddr *)&bound, length, NULL, 0, port, sizeof port, NI_NUMERICSERV) != 0)
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
    pthread_condattr_t attributes;
    pthread_mutex_init(&server->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&server->arrived, &attributes);
    pthread_condattr_destroy(&attributes);
    server->polls = calloc((size_t)server->options.max_connections, sizeof *server->polls);
    if (!server->polls)
        return FAIL(STATUS_FAILED, "out of memory for %d connections", server->options.max_connections);
    TRY(open_socket(server));
    server->daemon = MHD_start_daemon(
        MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, handle,
        server, MHD_OPTION_LISTEN_SOCKET, server->socket, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)server->options.max_connections, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
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
    free(server->polls);
    free(server);
}

enum status http_start(const struct http_options *options, struct http_server **out) {
    struct http_server *server = calloc(1, sizeof *server);
    *out = NULL;
    if (!server)
        return FAIL(STATUS_FAILED, "out of memory for the HTTP server");
    server->options = *options;
    server->socket = -1;
    enum status status = start(server);
    if (status != STATUS_OK) {
        server_delete(server);
        return status;
    }
    *out = server;
    return STATUS_OK;
}

int http_port(const struct http_server *server) {
    return server->port;
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

// Finds clients that have left, and connections that take too long. With the lock held.
static void look_at_connections(struct http_server *server) {
    double now = clock_monotonic_s();
    nfds_t n = 0;
    if (now - server->looked_s < LOOK_SECONDS)
        return;
    server->looked_s = now;
    for (struct link *link = server->links; link; link = link->next) {
        const struct exchange *exchange = link->exchange;
        bool working = exchange && exchange->complete &&
                       (!exchange->answered || (exchange->streams && !exchange->ended));
        if (!working && now - link->since_s > server->options.timeout_s)
            shutdown(link->socket, SHUT_RDWR);
        if (working && n < (nfds_t)server->options.max_connections)
            server->polls[n++] = (struct pollfd){.fd = link->socket, .events = POLLRDHUP};
    }
    if (n == 0 || poll(server->polls, n, 0) <= 0)
        return;
    for (struct link *link = server->links; link; link = link->next)
        for (nfds_t i = 0; i < n && link->exchange; i++)
            if (server->polls[i].fd == link->socket &&
                (server->polls[i].revents & (POLLRDHUP | POLLHUP | POLLERR))) {
                link->exchange->gone = true;
                wake(link->exchange);
                break;
            }
}

struct exchange *http_next(struct http_server *server, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    long long ns = until.tv_nsec + (long long)(seconds * 1e9);
    until = (struct timespec){until.tv_sec + ns / 1000000000, ns % 1000000000};
    pthread_mutex_lock(&server->lock);
    look_at_connections(server);
    while (!server->first && seconds > 0)
        if (pthread_cond_timedwait(&server->arrived, &server->lock, &until) != 0)
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
    look_at_connections(server);
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
            wake(link->exchange);
    pthread_mutex_unlock(&server->lock);
    MHD_stop_daemon(server->daemon);
    while (server->first) {
        struct exchange *next = server->first->next;
        drop(server->first);
        server->first = next;
    }
    server_delete(server);
}

const char *exchange_method(const struct exchange *exchange) {
    return exchange->method;
}

const char *exchange_path(const struct exchange *exchange) {
    return exchange->path;
}

const char *exchange_body(const struct exchange *exchange, size_t *n_bytes) {
    *n_bytes = exchange->body.length;
    return exchange->body.data ? exchange->body.data : "";
}

double exchange_began_s(const struct exchange *exchange) {
    return exchange->began_s;
}

bool exchange_is_gone(struct exchange *exchange) {
    pthread_mutex_lock(&exchange->server->lock);
    bool gone = exchange->gone;
    pthread_mutex_unlock(&exchange->server->lock);
    return gone;
}

void exchange_answer(struct exchange *exchange, int code, const char *type, const char *header,
                     const char *value, const char *bytes, size_t n_bytes) {
    pthread_mutex_lock(&exchange->server->lock);
    exchange->code = code;
    exchange->type = type;
    exchange->value = header ? strdup(value) : NULL;
    exchange->header = exchange->value ? header : NULL;
    text_add_bytes(&exchange->out, bytes, n_bytes);
    exchange->answered = true;
    wait_for_client(exchange);
    wake(exchange);
    pthread_mutex_unlock(&exchange->server->lock);
}

void exchange_begin_stream(struct exchange *exchange, const char *type) {
    pthread_mutex_lock(&exchange->server->lock);
    exchange->code = MHD_HTTP_OK;
    exchange->type = type;
    exchange->answered = exchange->streams = true;
    wake(exchange);
    pthread_mutex_unlock(&exchange->server->lock);
}

void exchange_write(struct exchange *exchange, const char *bytes, size_t n_bytes) {
    pthread_mutex_lock(&exchange->server->lock);
    if (!exchange->gone)
        text_add_bytes(&exchange->out, bytes, n_bytes);
    wake(exchange);
    pthread_mutex_unlock(&exchange->server->lock);
}

void exchange_end_stream(struct exchange *exchange) {
    pthread_mutex_lock(&exchange->server->lock);
    exchange->ended = true;
    wait_for_client(exchange);
    wake(exchange);
    pthread_mutex_unlock(&exchange->server->lock);
}

void exchange_release(struct exchange *exchange) {
    struct http_server *server = exchange->server;
    pthread_mutex_lock(&server->lock);
    exchange->released = true;
    wake(exchange);
    drop(exchange);
    pthread_mutex_unlock(&server->lock);
}
