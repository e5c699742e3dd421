#include "cli/serve/access.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

// Reads "HOST[:PORT]". Returns false if the text has another form.
//   host   [out] in lower case, without brackets and without a final dot
static bool read_host(const char *text, char host[static 256]) {
    int n = 0;
    const char *const form = text[0] == '[' ? "[%255[0-9a-fA-F:.]]%n" : "%255[0-9a-zA-Z._-]%n";
    if (sscanf(text, form, host, &n) != 1 || n == 0)
        return false;
    for (char *c = host; *c; c++)
        *c = (char)(*c == '.' && !c[1] ? 0 : tolower((unsigned char)*c));
    text += n + (text[n] == ':');
    return host[0] && !text[strspn(text, "0123456789")];
}

static bool is_address(const char *host) {
    struct in6_addr address;
    return inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;
}

bool access_is_local(const char *address) {
    return strcmp(address, "::1") == 0 || (strncmp(address, "127.", 4) == 0 && is_address(address));
}

static bool is_known(const struct access *access, const char *host, const char *address) {
    bool known = strcmp(host, "localhost") == 0 || text_ends_with(host, ".localhost") ||
                 access_is_local(host) || strcmp(host, address) == 0 || strcasecmp(host, access->host) == 0;
    for (int i = 0; i < access->hosts.n; i++)
        known |= access->names[i][0] == '.' ? text_ends_with(host, access->names[i])
                                            : strcmp(host, access->names[i]) == 0;
    return known;
}

// Checks the host that the request names, against DNS rebinding: an attacker can make a domain name resolve
// to this machine. A server that listens on all addresses does not know by which address clients reach it
// (for example, through a container's published port), so it accepts any IP address as the host. This is
// safe, because an IP address is not looked up in DNS.
//   host   [out] the host, as read_host returns it; not set if the request names none (HTTP/1.0)
static bool check_host(const struct access *access, struct exchange *exchange, char host[static 256]) {
    const char *address = exchange->address;
    const bool anywhere = strcmp(address, "0.0.0.0") == 0 || strcmp(address, "::") == 0;
    if (!exchange->host) // a request of HTTP/1.0, which browsers do not send
        return true;
    if (!read_host(exchange->host, host))
        return api_refuse(&exchange->error, 400, NULL, NULL,
                          "the header Host is \"%.100s\", expected HOST or HOST:PORT", exchange->host);
    if (is_known(access, host, address) || (anywhere && is_address(host)))
        return true;
    return api_refuse(&exchange->error, 403, "host_not_allowed", NULL,
                      "unknown host \"%.100s\"; if it is this server, start it with --allow-host NAME", host);
}

// Checks which page, if any, sent the request. Pages of the host that the request names and of known hosts
// are accepted with any port and scheme, because a proxy may change these. Another site may link to the
// server's page, but not embed it.
static bool check_page(const struct access *access, struct exchange *exchange, const char *host) {
    const char *origin = exchange_header(exchange, "Origin"), *name = origin ? strstr(origin, "://") : NULL;
    const char *site = exchange_header(exchange, "Sec-Fetch-Site");
    const char *into = exchange_header(exchange, "Sec-Fetch-Dest");
    char other[256];
    for (int i = 0; origin && i < access->origins.n; i++)
        if (strcmp(access->origins.strings[i], "*") == 0 ||
            strcasecmp(access->origins.strings[i], origin) == 0)
            exchange->cors_origin = origin;
    bool good = !origin || (name && read_host(name + 3, other) &&
                            (strcmp(other, host) == 0 || is_known(access, other, exchange->address)));
    if (site && !text_has_word("same-origin same-site none", site, strlen(site)))
        good &= into && strcmp(into, "document") == 0 && strcmp(exchange->method, "GET") == 0;
    return good || exchange->cors_origin ||
           api_refuse(&exchange->error, 403, "origin_not_allowed", NULL,
                      "pages of %.100s may not call this server; to allow them, start it with --cors ORIGIN",
                      origin ? origin : "other sites");
}

// Checks the API key, in a time that does not depend on how many characters match. No key is needed for the
// page (which asks for the key), /health, and CORS preflight requests.
static bool check_key(const struct access *access, struct exchange *exchange) {
    const char *given = exchange_header(exchange, "Authorization"), *key = access->key;
    if (!key || text_has_word("/ /health", exchange->path, strlen(exchange->path)) ||
        strcmp(exchange->method, "OPTIONS") == 0)
        return true;
    given = given && strncasecmp(given, "Bearer ", 7) == 0 ? given + 7 : "";
    const size_t n = strlen(given), length = strlen(key);
    size_t differs = n ^ length;
    for (size_t i = 0; i < n; i++)
        differs |= (size_t)(given[i] ^ key[i < length ? i : 0]);
    return !differs || api_refuse(&exchange->error, 401, "invalid_api_key", NULL,
                                  "this server needs its API key: Authorization: Bearer KEY");
}

// Checks the content type of a POST, which must be application/json. A client other than a page in a
// browser may also omit it, or declare the body as a form, as `curl -d` does with JSON.
static bool check_type(struct exchange *exchange) {
    const char *type = exchange_header(exchange, "Content-Type");
    const size_t n = type ? strcspn(type, "; \t") : 0;
    const bool of_page = exchange_header(exchange, "Origin") || exchange_header(exchange, "Sec-Fetch-Site");
    return strcmp(exchange->method, "POST") != 0 ||
           (n == 16 && strncasecmp(type, "application/json", n) == 0) ||
           (!of_page &&
            (n == 0 || (n == 33 && strncasecmp(type, "application/x-www-form-urlencoded", n) == 0))) ||
           api_refuse(&exchange->error, 415, "unsupported_media_type", NULL,
                      "the header Content-Type is \"%.60s\", expected application/json", type ? type : "");
}

void access_admit(const void *context, struct exchange *exchange) {
    const struct access *access = context;
    char host[256] = "";
    if (check_host(access, exchange, host) && check_page(access, exchange, host) &&
        check_key(access, exchange))
        check_type(exchange);
}

enum status access_init(struct access *access) {
    char host[256];
    access->key = access->key ? access->key : getenv("ZERO_API_KEY");
    for (const char *c = access->key; c && (!*access->key || *c); c++)
        if (!isgraph((unsigned char)*c))
            return FAIL(STATUS_INVALID, "train serve: the API key has to be printable ASCII without blanks");
    for (int i = 0; i < access->hosts.n; i++)
        if (!read_host(access->hosts.strings[i], access->names[i]))
            return FAIL(STATUS_INVALID, "train serve: --allow-host is \"%s\", expected NAME, .NAME or [IPv6]",
                        access->hosts.strings[i]);
    for (int i = 0; i < access->origins.n; i++) {
        const char *origin = access->origins.strings[i], *name = strstr(origin, "://");
        if (strcmp(origin, "*") != 0 && (!name || !read_host(name + 3, host)))
            return FAIL(STATUS_INVALID, "train serve: --cors is \"%s\", expected http://HOST:PORT or *",
                        origin);
    }
    return STATUS_OK;
}
