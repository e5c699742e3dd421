// JSON on top of cJSON: parsing with errors that name file, line and column, rejection of duplicate keys, and
// checked getters.
#ifndef ZERO_BASE_JSON_H
#define ZERO_BASE_JSON_H

#include <cjson/cJSON.h>
#include <stdint.h>

#include "base/status.h"

// Parses `text`; free the result with cJSON_Delete. `source` (a path, or "override") names the text in
// messages.
// STATUS_INVALID: syntax error, text after the value, duplicate key, or a string that contains a zero byte.
enum status json_parse(const char *text, size_t length, const char *source, cJSON **out) MUST_CHECK;
// Returns the line number, from 1, of an item's key in the text that `root` was parsed from. 0: the item has
// no key, or is not below `root`.
size_t json_line(const char *text, size_t length, const cJSON *root, const cJSON *item);
// Fails with STATUS_INVALID; the message has line, column and the likely mistake.
//   at     where cJSON stopped parsing
//   line   number of the text's first line in its file; above 1 if the text is a later line of a JSONL file
enum status json_syntax_error(const char *text, size_t length, const char *at, const char *source,
                              uint64_t line);
// Overwrites with spaces two things that Hjson allows and JSON does not: comments (//, # and /* */), and
// commas before a closing bracket. Line and column numbers stay the same.
void json_blank_extensions(char *text, size_t length);
// Reads and parses a file of at most 256 MiB. The rest is as for json_parse.
enum status json_read_file(const char *path, cJSON **out) MUST_CHECK;
// Getters for a member of `object`. STATUS_INVALID, with `source` and key, when it is absent or has another
// type. Integers must be whole, within [minimum, maximum], and at most 2^53 in magnitude.
enum status json_get_integer(const cJSON *object, const char *key, int64_t minimum, int64_t maximum,
                             const char *source, int64_t *out) MUST_CHECK;
enum status json_get_number(const cJSON *object, const char *key, const char *source, double *out) MUST_CHECK;
enum status json_get_string(const cJSON *object, const char *key, const char *source,
                            const char **out) MUST_CHECK;
enum status json_get_array(const cJSON *object, const char *key, const char *source,
                           const cJSON **out) MUST_CHECK;
enum status json_get_object(const cJSON *object, const char *key, const char *source,
                            const cJSON **out) MUST_CHECK;

// Warns, once per file, of members of `object` that this program does not know: ignoring them may misread the
// file. Members that are null are not reported. Does nothing if `object` is NULL or not an object.
//   known    the known names, separated by spaces or commas
//   source   names the object in the message
void json_warn_of_unknown(const cJSON *object, const char *known, const char *source);

// Appends `string` as a JSON string: quoted and escaped.
struct text;
void json_add_string(struct text *text, const char *string);
// Appends n bytes, escaped for a JSON string but without the quotes around it.
void json_add_escaped(struct text *text, const char *bytes, size_t n);

#endif
