// Printing for several commands: untrusted text from files, and tables.
#ifndef ZERO_CLI_PRINT_H
#define ZERO_CLI_PRINT_H

#include "base/text.h"

// Appends untrusted bytes as UTF-8 that is safe to print. Invalid bytes, and control characters except tabs
// and newlines, become U+FFFD, so that escape sequences never reach a terminal.
void clean_text_add(struct text *out, const char *bytes, size_t n);
// Like clean_text_add, but appends a JSON string.
void clean_text_add_json(struct text *out, const char *bytes, size_t n);

// A table of texts; column 0 has the names of the rows.
struct table {
    struct text *cells; // (rows, columns); table_print frees them
    int rows, columns;
    int n_left;      // the first n_left columns are left-aligned, the others right-aligned
    const char *gap; // printed between two columns
    // Maximum width in characters. Columns that do not fit are printed in more tables below, each of which
    // begins with column 0. 0: no limit
    int width;
};
// Prints the table.
void table_print(struct table *table);

#endif
