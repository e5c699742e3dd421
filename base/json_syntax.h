// Explains why a text is not JSON, in words for the mistakes that people make: trailing and missing commas,
// comments, single quotes, names without quotes, True and None.
#ifndef ZERO_BASE_JSON_SYNTAX_H
#define ZERO_BASE_JSON_SYNTAX_H

#include <stdbool.h>
#include <stddef.h>

struct json_mistake {
    const char *at; // in the text
    char what[160]; // ends so that the text at the mistake can follow: "comments are not JSON; remove this:"
};

// Finds the first mistake in a text that a parser refused. Returns false if there is none that it knows, such
// as nesting that is too deep. The text needs no NUL.
bool json_find_mistake(const char *text, size_t length, struct json_mistake *mistake);

// Line and column, both from 1, of a place in a text. Columns count bytes.
void json_line_and_column(const char *text, const char *at, size_t *line, size_t *column);

// Overwrites with blanks what Hjson and JSON5 allow beyond JSON: comments (//, # and /* */) and commas before
// a closing bracket. Lines and columns stay.
void json_blank_extensions(char *text, size_t length);

#endif
