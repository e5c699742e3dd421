// A growing list of token ids. Zero-initialize it.
#ifndef ZERO_DATA_TOKEN_LIST_H
#define ZERO_DATA_TOKEN_LIST_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct token_list {
    int32_t *ids;
    size_t n, capacity;
};
enum status token_list_add(struct token_list *list, int32_t id) MUST_CHECK;
// Makes room for `more` ids after the last.
enum status token_list_reserve(struct token_list *list, size_t more) MUST_CHECK;
void token_list_free(struct token_list *list);

#endif
