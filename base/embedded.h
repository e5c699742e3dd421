// Files that are part of the program: *.html, *.css and *.js in a folder of the Makefile. A rule there turns
// cli/report/page.html into the symbol cli_report_page_html, and so on.
#ifndef ZERO_BASE_EMBEDDED_H
#define ZERO_BASE_EMBEDDED_H

#include <stddef.h>
#include <stdint.h>

// Declares a file: the array embedded_NAME holds its bytes and a final NUL. embedded_NAME_bytes is its size
// without the NUL.
#define EMBEDDED_FILE(name)                                                                                  \
    extern const char embedded_##name[];                                                                     \
    extern const uint64_t embedded_##name##_bytes

#endif
