// Files that the Makefile embeds in the program: *.html, *.css and *.js in its source folders. The contents
// of cli/report/page.html become the array embedded_cli_report_page_html, and so on.
#ifndef ZERO_BASE_EMBEDDED_H
#define ZERO_BASE_EMBEDDED_H

#include <stddef.h>
#include <stdint.h>

// Declares an embedded file: the array embedded_NAME holds its bytes and a final NUL. embedded_NAME_bytes is
// the number of bytes without the NUL.
#define EMBEDDED_FILE(name)                                                                                  \
    extern const char embedded_##name[];                                                                     \
    extern const uint64_t embedded_##name##_bytes

#endif
