// The recorded failure is one per process (base/status.h): each fault is taken from there and cleared.
#include "options/faults.h"

enum {
    MOST_FAULTS = 100,
    MOST_BYTES = STATUS_MESSAGE_BYTES - 1024 // of the list: introduction, advice and path fit too
};

struct faults faults_begin(void) {
    return (struct faults){.blocked = status_message()[0] != '\0'};
}

enum status faults_take(struct faults *faults, enum status status) {
    if (status != STATUS_INVALID || faults->blocked)
        return status;
    text_add(&faults->list, "%s%s", faults->n ? "\n  " : "", status_message());
    faults->n++;
    status_clear();
    faults->full = faults->n == MOST_FAULTS;
    return faults->full ? STATUS_INVALID : text_status(&faults->list);
}

// Cuts the list at the end of a line; returns the number of lines that stay.
static int shorten(struct text *list) {
    int n = 1;
    size_t end = MOST_BYTES;
    while (end > 0 && list->data[end] != '\n')
        end--;
    list->data[end] = '\0';
    for (size_t i = 0; i < end; i++)
        n += list->data[i] == '\n';
    return n;
}

enum status faults_end(struct faults *faults, enum status status, const char *advice) {
    struct text message = {0};
    if (faults->full || (status == STATUS_OK && faults->n > 0)) {
        const int shown = faults->list.length > MOST_BYTES ? shorten(&faults->list) : faults->n;
        if (faults->n > 1)
            text_add(&message, "%s%d faults in the configuration:\n  ", faults->full ? "at least " : "",
                     faults->n);
        text_add(&message, "%s", faults->list.data);
        if (shown < faults->n)
            text_add(&message, "\n  and %d others", faults->n - shown);
        if (advice)
            text_add(&message, "\n  %s", advice);
        status = text_status(&message);
        if (status == STATUS_OK)
            status = FAIL(STATUS_INVALID, "%s", message.data);
    }
    text_free(&message);
    text_free(&faults->list);
    return status;
}
