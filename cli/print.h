// What several commands print: text of files that anything may have written, and tables.
#ifndef ZERO_CLI_PRINT_H
#define ZERO_CLI_PRINT_H

#include "base/text.h"

// Appends the bytes as UTF-8: U+FFFD for each that is not, and for control characters but tabs and newlines.
// Escape sequences therefore never reach a terminal.
void clean_text_add(struct text *out, const char *bytes, size_t n);
// The same as a JSON string.
void clean_text_add_json(struct text *out, const char *bytes, size_t n);

// A table of texts; column 0 names the rows.
struct table {
    struct text *cells; // (rows, columns), which table_print frees
    int rows, columns;
    int n_left;      // columns that are aligned to the left; the others to the right
    const char *gap; // between two columns
    int width;       // more columns than fit go to further tables below, each with column 0; 0: no limit
};
// Prints it; widths are counted in characters.
void table_print(struct table *table);

#endif
