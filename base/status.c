// The record of the first failure. A mutex guards it, because the loader's thread and the main thread can
// fail at the same time.
#include "base/status.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char message[STATUS_MESSAGE_BYTES];
static char place[128];
static unsigned serial = 1;

enum status status_fail(enum status status, const char *file, int line, const char *format, ...) {
    pthread_mutex_lock(&lock);
    if (message[0] == '\0') {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(message, sizeof message, format, arguments);
        va_end(arguments);
        snprintf(place, sizeof place, "%s:%d", file, line);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

const char *status_message(void) {
    return message;
}

const char *status_place(void) {
    return place;
}

void status_clear(void) {
    pthread_mutex_lock(&lock);
    serial += message[0] != '\0';
    message[0] = '\0';
    place[0] = '\0';
    pthread_mutex_unlock(&lock);
}

unsigned status_serial(void) {
    pthread_mutex_lock(&lock);
    unsigned now = serial;
    pthread_mutex_unlock(&lock);
    return now;
}

int status_exit_code(enum status status) {
    switch (status) {
    case STATUS_OK:
    case STATUS_STOPPED:
        return 0;
    case STATUS_INVALID:
    case STATUS_UNSUPPORTED:
        return 2;
    case STATUS_UNDECIDED:
        return 3;
    case STATUS_FAILED:
        return 1;
    }
    return 1;
}
