// A network link with delay and loss between two network namespaces, for tests/cli/hosts.py: creates a TAP
// device in each, prints "ready", and passes frames both ways until it is killed.
//
// usage: link_relay PID DEVICE PID DEVICE DELAY_MS LOSS SEED      PID: a process in the namespace
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define FRAMES      4096 // that a direction holds; later ones are lost, as in a full queue
#define FRAME_BYTES 1536

struct frame {
    int64_t due_ns;
    ssize_t bytes;
    char data[FRAME_BYTES];
};

struct direction {
    int from, to;
    unsigned first, n;
    struct frame frames[FRAMES];
};

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int open_tap(const char *process, const char *name) {
    char path[64];
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
    snprintf(path, sizeof path, "/proc/%s/ns/net", process);
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    int space = open(path, O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET) != 0)
        err(1, "%s", path);
    close(space);
    int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (tap < 0 || ioctl(tap, TUNSETIFF, &request) != 0)
        err(1, "TAP device %s", name);
    return tap;
}

static void receive(struct direction *way, int64_t delay_ns, double loss, unsigned short *seed) {
    char surplus[FRAME_BYTES];
    for (;;) {
        struct frame *frame = &way->frames[(way->first + way->n) % FRAMES];
        const ssize_t bytes = read(way->from, way->n < FRAMES ? frame->data : surplus, FRAME_BYTES);
        if (bytes <= 0)
            return;
        if (way->n == FRAMES || erand48(seed) < loss)
            continue;
        frame->due_ns = now_ns() + delay_ns;
        frame->bytes = bytes;
        way->n++;
    }
}

// Sends the frames that are due, and returns when the next one is.
static int64_t deliver(struct direction *way) {
    for (; way->n > 0; way->n--, way->first = (way->first + 1) % FRAMES) {
        const struct frame *frame = &way->frames[way->first];
        if (frame->due_ns > now_ns())
            return frame->due_ns;
        if (write(way->to, frame->data, (size_t)frame->bytes) < 0)
            continue; // the interface is down: the frame is lost
    }
    return INT64_MAX;
}

int main(int n, char **words) {
    static struct direction ways[2];
    if (n != 8)
        errx(2, "usage: link_relay PID DEVICE PID DEVICE DELAY_MS LOSS SEED");
    const int64_t delay_ns = (int64_t)(atof(words[5]) * 1e6);
    const double loss = atof(words[6]);
    unsigned short seed[3] = {1, 2, (unsigned short)atoi(words[7])};
    ways[0].from = ways[1].to = open_tap(words[1], words[2]);
    ways[1].from = ways[0].to = open_tap(words[3], words[4]);
    puts("ready");
    fflush(stdout);
    for (;;) {
        int64_t next = INT64_MAX;
        for (int k = 0; k < 2; k++) {
            receive(&ways[k], delay_ns, loss, seed);
            const int64_t due = deliver(&ways[k]);
            next = due < next ? due : next;
        }
        const int64_t wait = next == INT64_MAX ? 1000000000 : next - now_ns();
        struct timespec timeout = {.tv_nsec = wait > 0 ? (long)(wait < 999999999 ? wait : 999999999) : 0};
        struct pollfd ready[2] = {{.fd = ways[0].from, .events = POLLIN},
                                  {.fd = ways[1].from, .events = POLLIN}};
        ppoll(ready, 2, &timeout, NULL);
    }
}
