// The terminal as a screen: the alternate buffer, keys without waiting for Enter, and its size. All is as
// before after screen_close.
#ifndef ZERO_CLI_WATCH_SCREEN_H
#define ZERO_CLI_WATCH_SCREEN_H

#include <stdbool.h>
#include <termios.h>

#include "base/text.h"

struct screen {
    bool has_keys; // standard input is a terminal, whose settings `before` holds
    struct termios before;
    int columns, rows;
};

// True if standard output is a terminal that can place text.
bool screen_is_possible(void);
// Signals that end programs make screen_wait return SCREEN_QUIT from now on.
enum status screen_open(struct screen *screen) MUST_CHECK;
void screen_close(struct screen *screen);
// Updates columns and rows.
void screen_measure(struct screen *screen);
// Draws the frame, lines that end with '\n', from the top; clears what it does not cover.
void screen_draw(const struct screen *screen, const struct text *frame);

#define SCREEN_TIMEOUT (-1)
#define SCREEN_QUIT    (-2) // q, Ctrl-C, a signal, or the terminal is gone
#define SCREEN_RESIZED (-3)
// Waits up to `seconds` (not at all if they are below 0) for a key, of which it returns the byte, or one of
// the above.
int screen_wait(const struct screen *screen, double seconds);

#endif
