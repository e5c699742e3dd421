// Printing for several commands: untrusted text from files, and tables.
#ifndef ZERO_CLI_PRINT_H
#define ZERO_CLI_PRINT_H

#include "base/text.h"

// Appends the bytes as UTF-8. Invalid bytes, and control characters except tabs and newlines, become U+FFFD,
// so that escape sequences never reach a terminal.
void clean_text_add(struct text *out, const char *bytes, size_t n);
// Like clean_text_add, but appends a JSON string.
void clean_text_add_json(struct text *out, const char *bytes, size_t n);

// A table of texts; column 0 has the names of the rows.
struct table {
    struct text *cells; // (rows, columns), which table_print frees
    int rows, columns;
    int n_left;      // number of left-aligned columns; the others are right-aligned
    const char *gap; // between two columns
    int width;       // columns that do not fit go into further tables below, each with column 0. 0: no limit
};
// Prints the table. Widths are counted in characters.
void table_print(struct table *table);

#endif
