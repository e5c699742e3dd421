// See data/token_list.h.
#include "data/token_list.h"

#include <stdlib.h>

void token_list_free(struct token_list *list) {
    free(list->ids);
    *list = (struct token_list){0};
}

enum status token_list_reserve(struct token_list *list, size_t more) {
    if (list->capacity - list->n >= more)
        return STATUS_OK;
    size_t capacity = 2 * list->capacity > list->n + more ? 2 * list->capacity : list->n + more + 1024;
    int32_t *grown = realloc(list->ids, capacity * sizeof *grown);
    if (!grown)
        return FAIL(STATUS_FAILED, "out of memory for %zu token ids", capacity);
    list->ids = grown;
    list->capacity = capacity;
    return STATUS_OK;
}

enum status token_list_add(struct token_list *list, int32_t id) {
    TRY(token_list_reserve(list, 1));
    list->ids[list->n++] = id;
    return STATUS_OK;
}
