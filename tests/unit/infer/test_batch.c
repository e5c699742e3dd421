// Continuous batching: a text has the same tokens and log-probabilities, to the bit, alone and together with
// others that join and leave at any step, with few rows per decoding step and prompts in pieces.
#include "tests/support/whole_model.h"

#include "infer/batch.h"

enum { N_TEXTS = 9, POSITIONS = 300, MOST_TOKENS = 40 };

static const struct gpt_config config = {
    .n_layer = 2, .n_head = 2, .n_embd = 32, .vocab_size = 260, .n_positions = POSITIONS};

struct collected {
    int n_tokens, n_prompt;
    int32_t ids[MOST_TOKENS];
    float logprobs[MOST_TOKENS], prompt_logprobs[POSITIONS];
    struct token_logprob first[MOST_TOKENS]; // the most likely token of each
    char text[1024];
    size_t n_bytes;
    bool ended;
    enum text_end why;
};

static enum status collect_token(void *context, const struct text_token *token) {
    struct collected *into = context;
    assert_false(into->ended);
    if (token->of_prompt) {
        assert_int_equal(token->has_logprobs, into->n_prompt > 0);
        into->prompt_logprobs[into->n_prompt++] = token->logprob;
        return STATUS_OK;
    }
    assert_true(into->n_tokens < MOST_TOKENS);
    into->ids[into->n_tokens] = token->id;
    into->logprobs[into->n_tokens] = token->logprob;
    into->first[into->n_tokens++] = token->top[0];
    return STATUS_OK;
}

static enum status collect_text(void *context, const char *bytes, size_t n_bytes) {
    struct collected *into = context;
    assert_true(n_bytes > 0 && into->n_bytes + n_bytes <= sizeof into->text);
    memcpy(into->text + into->n_bytes, bytes, n_bytes);
    into->n_bytes += n_bytes;
    return STATUS_OK;
}

static enum status collect_end(void *context, enum text_end why) {
    struct collected *into = context;
    assert_false(into->ended);
    into->ended = true;
    into->why = why;
    return STATUS_OK;
}

// ---- the texts

static int32_t prompts[N_TEXTS][2 * POSITIONS];
static size_t prompt_lengths[N_TEXTS] = {1, 70, 200, 3, 130, 64, 65, 2 * POSITIONS, 50};
static struct text_options options[N_TEXTS];
static const char *const stops[] = {"a", "b", "c", "d", "e", "f", "g", "h",
                                    "i", "j", "k", "l", "m", "n", "o", "p"};

static void make_texts(void) {
    for (int i = 0; i < N_TEXTS; i++) {
        random_tokens(prompts[i], (int)prompt_lengths[i], 256, 40 + (uint32_t)i);
        options[i] = (struct text_options){.sampling = {.temperature = 0.5 + 0.25 * i, .top_p = 1, .seed = 5},
                                           .repetition_penalty = 1,
                                           .n_tokens = 10 + 3 * i,
                                           .n_top = -1,
                                           .first_counter = (uint64_t)i << 32};
    }
    options[1].n_top = 3;
    options[2].repetition_penalty = 1.5;
    options[3].sampling.top_k = 9;
    options[4].sampling.min_p = 0.05;
    options[5].n_top = 1;
    options[5].repetition_penalty = 1.2;
    options[6].n_tokens = MOST_TOKENS;
    options[6].stops = stops;
    options[6].n_stops = sizeof stops / sizeof *stops;
    options[8].n_top = 1;
    options[8].prompt_logprobs = true;
}

static struct batch *open_batch(struct whole_model *model, const struct tokenizer *tokenizer, int step_rows,
                                int prompt_tokens) {
    return batch_new(&(struct batch_options){.generator = model->generator,
                                             .stream = &model->stream,
                                             .hooks = &model->hooks,
                                             .tokenizer = tokenizer,
                                             .vocab_size = config.vocab_size,
                                             .positions = POSITIONS,
                                             .sequences = WHOLE_MODEL_SEQUENCES,
                                             .step_rows = step_rows,
                                             .prompt_tokens = prompt_tokens,
                                             .host_logits = true});
}

static void add(struct batch *batch, int text, struct collected *into) {
    batch_add(batch, prompts[text], prompt_lengths[text], &options[text],
              (struct text_events){collect_token, collect_text, collect_end, into});
}

static void step(struct batch *batch, int *n_drawn) {
    int n;
    assert_ok(batch_step(batch, &n));
    *n_drawn += n;
}

static void test_texts_do_not_change_each_other(void **state) {
    static struct collected alone[N_TEXTS], together[N_TEXTS], dropped;
    struct device *device = device_for_test(*state);
    struct tokenizer *tokenizer;
    struct whole_model model;
    int n_alone = 0, n_together = 0, n_begun = 0, n_steps = 0;
    memset(alone, 0, sizeof alone);
    memset(together, 0, sizeof together);
    memset(&dropped, 0, sizeof dropped);
    make_texts();
    assert_ok(tokenizer_load("bytes", &tokenizer));
    whole_model_init(&model, &config, device, &(struct gpt_options){.type = DTYPE_F32, .B = 1, .T = 8},
                     POSITIONS);
    whole_model_perturb(&model);

    struct batch *batch = open_batch(&model, tokenizer, WHOLE_MODEL_SEQUENCES, 0);
    for (int i = 0; i < N_TEXTS; i++) {
        add(batch, i, &alone[i]);
        while (batch_n_texts(batch) > 0)
            step(batch, &n_alone);
    }
    batch_delete(batch);

    batch = open_batch(&model, tokenizer, 2, GENERATOR_CHUNK);
    const int slot = batch_add(batch, prompts[4], prompt_lengths[4], &options[4],
                               (struct text_events){collect_token, collect_text, collect_end, &dropped});
    for (; n_begun < N_TEXTS || batch_n_texts(batch) > 0; n_steps++) {
        if (n_steps == 5)
            batch_remove(batch, slot); // in the middle: its events end
        if (n_begun < N_TEXTS && batch_n_texts(batch) < WHOLE_MODEL_SEQUENCES && n_steps % 3 != 1) {
            add(batch, n_begun, &together[n_begun]);
            n_begun++;
        }
        step(batch, &n_together);
    }
    assert_int_equal(batch_n_cached(batch), 0);
    batch_delete(batch);

    assert_false(dropped.ended);
    for (int i = 0; i < N_TEXTS; i++) {
        assert_true(alone[i].ended);
        assert_true(alone[i].n_tokens == options[i].n_tokens || alone[i].why != TEXT_LENGTH);
        assert_memory_equal(&together[i], &alone[i], sizeof alone[i]);
    }
    assert_int_equal(alone[6].why, TEXT_STOP_STRING); // one of 16 bytes of 256 within 40 tokens
    for (size_t i = 0; i < alone[6].n_bytes; i++)
        assert_false(alone[6].text[i] >= 'a' && alone[6].text[i] <= 'p');
    assert_int_equal(alone[8].n_prompt, prompt_lengths[8]);
    whole_model_free(&model);
    tokenizer_delete(tokenizer);
    device_close(device);
}

// Log-probabilities of the prompt are those of the same tokens as the prompt grows.
static void test_prompt_logprobs(void **state) {
    static struct collected prompt, grown;
    struct device *device = device_for_test(*state);
    struct tokenizer *tokenizer;
    struct whole_model model;
    int n_drawn = 0;
    struct text_options ask = {.sampling = {.temperature = 1, .top_p = 1},
                               .repetition_penalty = 1,
                               .n_top = 0,
                               .prompt_logprobs = true};
    memset(&prompt, 0, sizeof prompt);
    make_texts();
    assert_ok(tokenizer_load("bytes", &tokenizer));
    whole_model_init(&model, &config, device, &(struct gpt_options){.type = DTYPE_F32, .B = 1, .T = 8},
                     POSITIONS);
    whole_model_perturb(&model);
    struct batch *batch = open_batch(&model, tokenizer, 1, 0);
    for (size_t n = 1; n <= 20; n += 19) {
        struct collected *into = n == 1 ? &grown : &prompt;
        batch_add(batch, prompts[2], n, &ask,
                  (struct text_events){collect_token, collect_text, collect_end, into});
        while (batch_n_texts(batch) > 0)
            step(batch, &n_drawn);
        assert_true(into->ended && into->why == TEXT_LENGTH);
        assert_int_equal(into->n_prompt, n);
    }
    assert_int_equal(n_drawn, 0);
    float logits[260];
    const int sequence = 0;
    generator_reset(model.generator, 0);
    for (int i = 0; i + 1 < prompt.n_prompt; i++) {
        struct logprobs logprobs;
        assert_ok(generator_step(model.generator, &model.stream, &model.hooks, &sequence, &prompts[2][i], 1,
                                 logits));
        logprobs_of(logits, config.vocab_size, 0, &logprobs); // ids that are never drawn too
        assert_true(prompt.prompt_logprobs[i + 1] == logprob_of(&logprobs, logits, prompts[2][i + 1]));
    }
    batch_delete(batch);
    whole_model_free(&model);
    tokenizer_delete(tokenizer);
    device_close(device);
}

#define ON(device, test)                                                                                     \
    { #test " on " device, test, NULL, NULL, (void *)(uintptr_t)device }

int main(void) {
    const struct CMUnitTest tests[] = {
        ON("avx512", test_texts_do_not_change_each_other),
        ON("avx2", test_texts_do_not_change_each_other),
        ON("portable", test_texts_do_not_change_each_other),
        ON("portable", test_prompt_logprobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
