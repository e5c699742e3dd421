// After a failed write, the next flush of the emptied stdio buffer succeeds, and errno is lost. So the
// stream's error flag decides whether output was lost, and poll(2) shows whether the reader closed the pipe.
// Compare gnulib's close_stdout.
#include "base/output.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio_ext.h>
#include <string.h>
#include <unistd.h>

#include "base/utf8.h"

static bool reader_has_gone(void) {
    struct pollfd output = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

static enum status write_failed(int error) {
    return FAIL(STATUS_FAILED, "cannot write to standard output%s%s: what was printed is incomplete",
                error ? ": " : "", error ? strerror(error) : "");
}

enum status output_close(void) {
    const bool pending = __fpending(stdout) > 0;
    errno = 0;
    bool failed = fflush(stdout) != 0;
    int error = failed ? errno : 0;
    failed = ferror(stdout) || failed;
    const bool gone = failed && (error == EPIPE || reader_has_gone());
    // Some file systems report a full disk only on close. If standard output was closed from the start, that
    // is an error only when something was printed.
    if (fclose(stdout) != 0 && !failed && (pending || errno != EBADF)) {
        failed = true;
        error = errno;
    }
    return failed && !gone ? write_failed(error) : STATUS_OK;
}

enum status output_flush(void) {
    errno = 0;
    if (fflush(stdout) == 0)
        return STATUS_OK;
    const int error = errno;
    return error == EPIPE || reader_has_gone() ? STATUS_OK : write_failed(error);
}

enum status output_write(const char *bytes, size_t n_bytes) {
    errno = 0;
    if (output_to(stdout, bytes, n_bytes) && fflush(stdout) == 0)
        return STATUS_OK;
    const int error = errno;
    return error == EPIPE || reader_has_gone()
               ? FAIL(STATUS_STOPPED, "the reader of standard output closed the pipe")
               : write_failed(error);
}

bool output_to(FILE *stream, const char *bytes, size_t n_bytes) {
    struct text shown = {0};
    if (!isatty(fileno(stream)))
        return fwrite(bytes, 1, n_bytes, stream) == n_bytes;
    utf8_add_visible(&shown, bytes, n_bytes, NULL);
    const bool done = shown.length == 0 || fwrite(shown.data, 1, shown.length, stream) == shown.length;
    text_free(&shown);
    return done;
}

void output_text(struct text *text) {
    output_to(stdout, text->data ? text->data : "", text->length);
    text_free(text);
}

void output_print(const char *format, ...) {
    struct text text = {0};
    va_list arguments;
    va_start(arguments, format);
    text_vadd(&text, format, arguments);
    va_end(arguments);
    output_text(&text);
}
