#include "cli/print.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/utf8.h"

#define REPLACEMENT "\xEF\xBF\xBD"

void clean_text_add(struct text *out, const char *bytes, size_t n) {
    utf8_add_visible(out, bytes, n, REPLACEMENT);
}

void clean_text_add_json(struct text *out, const char *bytes, size_t n) {
    struct text clean = {0};
    clean_text_add(&clean, bytes, n);
    json_add_string(out, clean.data ? clean.data : "");
    text_free(&clean);
}

// ---- tables

// Returns the number of characters in a cell: of bytes that are not UTF-8 continuation bytes (0x80 to 0xBF).
static int width_of(const struct text *cell) {
    int width = 0;
    for (size_t i = 0; i < cell->length; i++)
        width += ((unsigned char)cell->data[i] & 0xC0) != 0x80;
    return width;
}

// Prints column 0 and the columns [first, end) of a row.
static void print_row(const struct table *table, const struct text *row, const int *widths, int first,
                      int end) {
    for (int c = 0; c < end; c = c == 0 ? first : c + 1) {
        const int blanks = widths[c] - width_of(&row[c]);
        printf("%s%*s%s%*s", c > 0 ? table->gap : "", c < table->n_left ? 0 : blanks, "",
               row[c].data ? row[c].data : "", c < table->n_left && c < end - 1 ? blanks : 0, "");
    }
    printf("\n");
}

void table_print(struct table *table) {
    int *widths = allocate((size_t)table->columns, sizeof *widths);
    const int gap = (int)strlen(table->gap), n_cells = table->rows * table->columns;
    for (int i = 0; i < n_cells; i++)
        if (width_of(&table->cells[i]) > widths[i % table->columns])
            widths[i % table->columns] = width_of(&table->cells[i]);
    for (int first = 1, end; first < table->columns; first = end) {
        int width = widths[0];
        for (end = first; end < table->columns; end++) {
            width += gap + widths[end];
            if (end > first && table->width > 0 && width > table->width)
                break;
        }
        printf("%s", first > 1 ? "\n" : "");
        for (int row = 0; row < table->rows; row++)
            print_row(table, table->cells + row * table->columns, widths, first, end);
    }
    for (int i = 0; i < n_cells; i++)
        text_free(&table->cells[i]);
    free(table->cells);
    free(widths);
}
