#include "infer/text_loss.h"

#include <math.h>

#include "base/text.h"

void text_loss_count(struct text_loss *loss, const struct tokenizer *tokenizer, int32_t before,
                     const int32_t *targets, size_t n) {
    loss->tokens += (double)n;
    if (tokenizer)
        loss->bytes += (double)tokenizer_text_bytes(tokenizer, before, targets, n);
}

double text_loss_mean(const struct text_loss *loss) {
    return text_plain_nan(loss->nats / loss->tokens);
}

double text_loss_bits_per_byte(const struct text_loss *loss) {
    return text_plain_nan(loss->bytes > 0 ? loss->nats / log(2) / loss->bytes : NAN);
}
