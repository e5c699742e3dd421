// JSON in and out, over cJSON: parse with a message that names file, line and column, refuse duplicate keys,
// and walk objects with checked getters whose messages name the whole key ("model.n_layer").
#ifndef ZERO_BASE_JSON_H
#define ZERO_BASE_JSON_H

#include <cjson/cJSON.h>
#include <stdint.h>

#include "base/status.h"

// `source` names the text in messages (a path or "override"). STATUS_INVALID for syntax errors, trailing
// text, duplicate keys and strings that contain a zero byte. Free the result with cJSON_Delete.
enum status json_parse(const char *text, size_t length, const char *source, cJSON **out) MUST_CHECK;
enum status json_read_file(const char *path, cJSON **out) MUST_CHECK;
// Getters for files that we wrote or that others did: STATUS_INVALID with `source` and key when absent or of
// another type; integers must be whole and within [minimum, maximum] (exact up to 2^53).
enum status json_get_integer(const cJSON *object, const char *key, int64_t minimum, int64_t maximum,
                             const char *source, int64_t *out) MUST_CHECK;
enum status json_get_number(const cJSON *object, const char *key, const char *source, double *out) MUST_CHECK;
enum status json_get_string(const cJSON *object, const char *key, const char *source,
                            const char **out) MUST_CHECK;
enum status json_get_array(const cJSON *object, const char *key, const char *source,
                           const cJSON **out) MUST_CHECK;
enum status json_get_object(const cJSON *object, const char *key, const char *source,
                            const cJSON **out) MUST_CHECK;

// Adds `string` quoted and escaped as JSON has it.
struct text;
void json_add_string(struct text *text, const char *string);

#endif
