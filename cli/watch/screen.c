// Escape sequences of xterm, which all terminals in use know. Signals only set a flag, and write to a pipe
// that screen_wait polls, so that none is missed between two looks at the flag.
#include "cli/watch/screen.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define ENTER "\x1b[?1049h\x1b[?25l" // alternate buffer, no cursor
#define LEAVE "\x1b[?25h\x1b[?1049l"

#define CTRL_C 3

static const int ending[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
static volatile sig_atomic_t ended, resized;
static int wakeup[2] = {-1, -1};

static void wake(int signal) {
    const int error = errno;
    if (signal == SIGWINCH)
        resized = 1;
    else
        ended = 1;
    (void)!write(wakeup[1], "", 1);
    errno = error;
}

static void write_all(const char *bytes, size_t n) {
    while (n > 0) {
        const ssize_t written = write(STDOUT_FILENO, bytes, n);
        if (written < 0 && errno != EINTR && errno != EAGAIN) {
            ended = 1; // the terminal is gone
            return;
        }
        if (written > 0) {
            bytes += written;
            n -= (size_t)written;
        }
    }
}

bool screen_is_possible(void) {
    const char *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && term && *term && strcmp(term, "dumb") != 0;
}

enum status screen_open(struct screen *screen) {
    *screen = (struct screen){0};
    if (pipe2(wakeup, O_CLOEXEC | O_NONBLOCK) != 0)
        return FAIL(STATUS_FAILED, "cannot create a pipe: %s", strerror(errno));
    struct sigaction action = {.sa_handler = wake};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof ending / sizeof *ending; i++)
        sigaction(ending[i], &action, NULL);
    sigaction(SIGWINCH, &action, NULL);
    screen->has_keys = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &screen->before) == 0;
    if (screen->has_keys) {
        struct termios raw = screen->before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ISIG);
        raw.c_cc[VMIN] = 1;
        raw.c_cc[VTIME] = 0;
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    write_all(ENTER, sizeof ENTER - 1);
    screen_measure(screen);
    return STATUS_OK;
}

void screen_close(struct screen *screen) {
    write_all(LEAVE, sizeof LEAVE - 1);
    if (screen->has_keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &screen->before);
    close(wakeup[0]);
    close(wakeup[1]);
}

void screen_measure(struct screen *screen) {
    struct winsize size = {0};
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
    screen->columns = known ? size.ws_col : 80;
    screen->rows = known ? size.ws_row : 24;
}

void screen_draw(const struct screen *screen, const struct text *frame) {
    struct text out = {0};
    int row = 0;
    text_add(&out, "\x1b[H");
    for (const char *line = frame->data; line && *line && row < screen->rows; row++) {
        const size_t length = strcspn(line, "\n");
        // Cleared before, as after a line that fills its row the cursor is still on the last character.
        text_add(&out, "%s\x1b[K", row > 0 ? "\r\n" : "");
        text_add_bytes(&out, line, length);
        text_add(&out, "\x1b[0m");
        line += length + (line[length] == '\n');
    }
    if (row < screen->rows)
        text_add(&out, "\r\n\x1b[J");
    if (!out.failed)
        write_all(out.data, out.length);
    text_free(&out);
}

int screen_wait(const struct screen *screen, double seconds) {
    struct pollfd from[] = {{.fd = wakeup[0], .events = POLLIN},
                            {.fd = screen->has_keys ? STDIN_FILENO : -1, .events = POLLIN}};
    char bytes[64];
    (void)poll(from, 2, seconds > 0 ? (int)(1000 * seconds) : 0); // a negative time would be endless
    if (from[0].revents)
        (void)!read(wakeup[0], bytes, sizeof bytes);
    if (ended)
        return SCREEN_QUIT;
    if (resized) {
        resized = 0;
        return SCREEN_RESIZED;
    }
    if (!from[1].revents)
        return SCREEN_TIMEOUT;
    char key;
    if (read(STDIN_FILENO, &key, 1) != 1)
        return errno == EINTR || errno == EAGAIN ? SCREEN_TIMEOUT : SCREEN_QUIT;
    return key == 'q' || key == 'Q' || key == CTRL_C ? SCREEN_QUIT : (unsigned char)key;
}
