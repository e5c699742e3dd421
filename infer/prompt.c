#include "infer/prompt.h"

enum status prompt_encode(const struct tokenizer *tokenizer, int vocab_size, struct prompt *prompt) {
    struct token_list *list = &prompt->tokens;
    list->n = 0;
    if (prompt->n_bytes == 0 || tokenizer_has_bos(tokenizer))
        token_list_add(list, tokenizer_document_start(tokenizer));
    TRY(tokenizer_encode(tokenizer, prompt->bytes, prompt->n_bytes, list));
    for (size_t i = 0; i < list->n; i++)
        if (list->ids[i] >= vocab_size)
            return FAIL(STATUS_INVALID,
                        "token %d of the prompt is outside the model's vocabulary of %d: the tokenizer is "
                        "not the one that the model was trained with",
                        list->ids[i], vocab_size);
    return STATUS_OK;
}
