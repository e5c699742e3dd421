// See zero/checkpoint/ranks.h.
#include "zero/checkpoint/ranks.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

bool ranks_is_root(const struct comm *comm) {
    return !comm || comm->rank == 0;
}

enum status ranks_agree(struct comm *comm, enum status status) {
    return comm ? comm_agree(comm, status) : status;
}

enum status ranks_broadcast(struct comm *comm, void *data, size_t bytes) {
    return comm ? comm_broadcast(comm, data, bytes, 0) : STATUS_OK;
}

void ranks_describe_place(const char *path, char out[RANKS_PLACE]) {
    char host[64] = "", folder[PATH_MAX] = "";
    if (gethostname(host, sizeof host - 1) != 0)
        host[0] = '\0';
    if (path[0] != '/' && !getcwd(folder, sizeof folder))
        folder[0] = '\0';
    int n = snprintf(out, RANKS_PLACE, "%s:%s%s%s", host, folder, folder[0] ? "/" : "", path);
    if (n >= RANKS_PLACE) // marks a truncated text
        snprintf(out + RANKS_PLACE - 4, 4, "...");
}
