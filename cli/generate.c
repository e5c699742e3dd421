// ./train generate RUN_OR_CHECKPOINT: generates text with a trained model.
#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/output.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/model_flags.h"
#include "data/text/input.h"
#include "data/text/json_line.h"
#include "data/text/sources.h"
#include "infer/sample.h"
#include "infer/session.h"
#include "infer/text_json.h"

static struct session_options model = {.device = "auto", .needs_tokenizer = true};
static const char *prompt = NULL, *prompts_path = NULL, *field = NULL, *in_prefix = "", *in_suffix = "";
static int64_t n_tokens = 128, n_samples = 1, batch = 16, top_k = 0, seed = 1, n_logprobs = -1;
static double temperature = 1, top_p = 1, min_p = 0, repetition_penalty = 1;
static bool interacts = false, as_json = false;
static struct arg_strings stops;

static const struct arg flags[] = {
    {"--prompt", ARG_STRING, &prompt, 0, 0, "text to continue (none: start from end-of-text)"},
    {"--tokens", ARG_INTEGER, &n_tokens, 1, 1e9, "maximum tokens per text (128)"},
    {"--prompts", ARG_STRING, &prompts_path, 0, 0,
     "a file of prompts, one per line, or JSON Lines; - reads standard input"},
    {"--field", ARG_STRING, &field, 0, 0,
     "--prompts is JSON Lines, and this member of each line's object is the prompt (\"prompt\")"},
    {"--samples", ARG_INTEGER, &n_samples, 1, 1e6, "texts per prompt (1)"},
    {"--batch", ARG_INTEGER, &batch, 1, 1024, "number of texts to generate together (16)"},
    {"--interactive", ARG_FLAG, &interacts, 0, 0, "read lines and continue each; /help lists its commands"},
    {"--in-prefix", ARG_STRING, &in_prefix, 0, 0, "interactive: added before each line (nothing)"},
    {"--in-suffix", ARG_STRING, &in_suffix, 0, 0, "interactive: added after each line (nothing)"},
    {"--temperature", ARG_NUMBER, &temperature, 0, 1e3,
     "divides the logits; 0: always the most likely token (1)"},
    {"--top-k", ARG_INTEGER, &top_k, 0, 1e9, "sample from the k most likely tokens only; 0: from all (0)"},
    {"--top-p", ARG_NUMBER, &top_p, 0, 1,
     "sample from the most likely tokens that together reach this probability (1)"},
    {"--min-p", ARG_NUMBER, &min_p, 0, 1,
     "sample from tokens with at least this fraction of the most likely one's probability (0)"},
    {"--repetition-penalty", ARG_NUMBER, &repetition_penalty, 0.1, 10,
     "tokens that occurred already: divides positive logits by it, multiplies negative ones (1)"},
    {"--stop", ARG_STRINGS, &stops, 0, 0, "end a text before this string; may be given several times"},
    {"--seed", ARG_INTEGER, &seed, 0, 0x1p53, "random seed: the same seed gives the same text (1)"},
    {"--json", ARG_FLAG, &as_json, 0, 0, "print one JSON object per text"},
    {"--logprobs", ARG_INTEGER, &n_logprobs, 0, MOST_TOP_LOGPROBS,
     "with --json: log-probabilities of each token and of the N most likely ones"},
    TOKENIZER_FLAG(model.tokenizer),
    WEIGHTS_FLAG(model.weights),
    DEVICE_FLAG(model.device),
    THREADS_FLAG(model.threads),
};

// ---- the prompts of a file

struct prompts {
    struct text file;       // the file's content; the prompts of a plain text file point into it
    char **strings;         // (n_strings) the strings of a JSON Lines file; its prompts point to them
    struct prompt *prompts; // (n)
    int64_t n, capacity;
    size_t n_strings, strings_capacity;
};

static void add_prompt(struct prompts *prompts, const char *bytes, size_t n) {
    RESERVE(prompts->prompts, prompts->n + 1, prompts->capacity);
    prompts->prompts[prompts->n++] = (struct prompt){bytes, n, {0}};
}

static enum status add_json_prompt(struct prompts *prompts, const char *line, size_t n, const char *path,
                                   uint64_t number) {
    struct text string = {0};
    enum status status = json_line_read(line, n, field ? field : "prompt", path, number, &string);
    RESERVE(prompts->strings, prompts->n_strings + 1, prompts->strings_capacity);
    prompts->strings[prompts->n_strings++] = string.data;
    add_prompt(prompts, string.data ? string.data : "", string.length);
    return status;
}

// Reads a file with one prompt per line. It is JSON Lines if --field is given, or if its name ends in
// .jsonl, .ndjson or .json (which .gz, .zst or .zstd may follow); else it is plain text. "-" is standard
// input. STATUS_INVALID: the file cannot be read, has no prompt, or has an invalid line; the message names
// the line.
static enum status prompts_read(struct prompts *prompts, const char *path) {
    const bool is_json = field || text_format_of(path) == TEXT_JSON_LINES;
    enum status status = text_input_read_all(path, &prompts->file);
    const char *line = prompts->file.data ? prompts->file.data : "", *end = line + prompts->file.length,
               *newline;
    for (uint64_t number = 1; status == STATUS_OK && line < end; line = newline + 1, number++) {
        newline = memchr(line, '\n', (size_t)(end - line));
        newline = newline ? newline : end;
        const size_t n = text_line_bytes(line, (size_t)(newline - line));
        if (!is_json)
            add_prompt(prompts, line, n);
        else if (!text_is_blank(line, n))
            status = add_json_prompt(prompts, line, n, path, number);
    }
    return status != STATUS_OK || prompts->n > 0
               ? status
               : FAIL(STATUS_INVALID, "%s contains no prompt, expected one per line", path);
}

static void prompts_free(struct prompts *prompts) {
    for (int64_t i = 0; i < prompts->n; i++)
        token_list_free(&prompts->prompts[i].tokens);
    for (size_t i = 0; i < prompts->n_strings; i++)
        free(prompts->strings[i]);
    free(prompts->strings);
    free(prompts->prompts);
    text_free(&prompts->file);
    *prompts = (struct prompts){0};
}

// ---- output as plain text

static enum status write_out(void *context, const char *bytes, size_t n_bytes) {
    (void)context;
    return output_write(bytes, n_bytes);
}

static enum status begin_text(void *context, int64_t text, const struct prompt *of_prompt) {
    (void)context;
    if (text > 0)
        printf("\n---\n");
    output_to(stdout, of_prompt->bytes, of_prompt->n_bytes);
    return STATUS_OK;
}

// ---- output as JSON

// A text and its tokens, collected until the text is complete and can be printed as one JSON object.
struct json_text {
    const struct tokenizer *tokenizer;
    const struct prompt *prompt;
    int64_t index;
    struct text text;
    struct text_token *tokens;
    size_t n_tokens, capacity;
};

static enum status begin_json(void *context, int64_t text, const struct prompt *of_prompt) {
    struct json_text *json = context;
    json->index = text;
    json->prompt = of_prompt;
    json->text.length = json->n_tokens = 0;
    return STATUS_OK;
}

static enum status add_json_text(void *context, const char *bytes, size_t n_bytes) {
    struct json_text *json = context;
    text_add_bytes(&json->text, bytes, n_bytes);
    return STATUS_OK;
}

static enum status add_json_token(void *context, const struct text_token *token) {
    struct json_text *json = context;
    RESERVE(json->tokens, json->n_tokens + 1, json->capacity);
    json->tokens[json->n_tokens++] = *token;
    return STATUS_OK;
}

static enum status end_json(void *context, enum text_end why) {
    struct json_text *json = context;
    struct text line = {0};
    text_add(&line, "{\"index\": %lld, \"prompt\": ", (long long)json->index);
    text_json_add_string(&line, json->prompt->bytes, json->prompt->n_bytes);
    text_add(&line, ", \"text\": ");
    text_json_add_string(&line, json->text.data, json->text.length);
    text_add(&line, ", \"finish_reason\": \"%s\"", text_end_name(why));
    if (n_logprobs >= 0) {
        text_add(&line, ", \"tokens\": [");
        for (size_t i = 0; i < json->n_tokens && text_token_is_shown(&json->tokens[i], json->text.length);
             i++) {
            text_add(&line, "%s", i ? ", " : "");
            text_json_add_token(&line, json->tokenizer, &json->tokens[i]);
        }
        text_add(&line, "]");
    }
    text_add(&line, "}\n");
    enum status status = output_write(line.data, line.length);
    text_free(&line);
    return status;
}

// ---- --interactive: lines from the user and text from the model take turns

// The conversation is one text: each turn appends the user's line, then the model's answer. libedit provides
// line editing. SIGINT is blocked, because compute threads must not be interrupted (base/signals.c). It is
// unblocked only while the program waits for a character. Between generated tokens, check_interrupt looks for
// a pending SIGINT.

#define HISTORY_LINES 1000

struct interactive {
    struct session *session;
    struct generator *generator;
    const struct sample_request *request;
    struct text_options text; // changed by /set
    struct text conversation;
    size_t before_answer; // bytes of the conversation before the model's last answer
    int64_t n_turns;
    bool terminal; // input and output are a terminal
    bool is_first; // without a terminal: true until the first line is read
    bool quit;
    EditLine *edit; // like `history`, NULL without a terminal
    History *history;
    char *line; // without a terminal: the buffer of getline
    size_t line_capacity;
};

static volatile sig_atomic_t interrupted;

static void note_interrupt(int number) {
    (void)number;
    interrupted = 1;
}

static bool on_terminal(void) {
    return isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
}

// On a terminal, blocks SIGINT, so that Ctrl-C ends the model's answer and not the program. Call it before
// any other thread is started, because threads inherit the mask.
static void prepare_interactive(void) {
    if (!on_terminal())
        return;
    struct sigaction action = {.sa_handler = note_interrupt}; // no SA_RESTART: the signal interrupts a read
    sigset_t set;
    sigaction(SIGINT, &action, NULL);
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

// ---- reading lines

static char *prompt_text(EditLine *edit) {
    (void)edit;
    static char text[] = "> ";
    return text;
}

// Reads one character. Replaces libedit's own function, which goes on reading after SIGINT. Returns 1; 0 at
// the end of the input; -1 after SIGINT or a failure.
static int read_character(EditLine *edit, wchar_t *out) {
    mbstate_t decoder = {0};
    (void)edit;
    for (;;) {
        char byte;
        struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
        sigset_t none;
        sigemptyset(&none);
        bool ready = ppoll(&input, 1, NULL, &none) > 0; // SIGINT is delivered only here
        if (interrupted)
            return -1;
        if (!ready)
            continue; // another signal: the program was suspended and continued
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n <= 0)
            return (int)n;
        size_t length = mbrtowc(out, &byte, 1, &decoder);
        if (length == (size_t)-1) // the bytes are not a character of this locale; skip them
            decoder = (mbstate_t){0};
        else if (length != (size_t)-2)
            return 1;
    }
}

// Reads one line with libedit, without its newline. Returns NULL at the end of the input, and an empty line
// after Ctrl-C.
static const char *read_edited(struct interactive *interactive, size_t *n) {
    int length = 0;
    HistEvent event;
    interrupted = 0;
    el_resize(interactive->edit); // the terminal's width may have changed
    const char *line = el_gets(interactive->edit, &length);
    *n = 0;
    if (interrupted) {
        el_reset(interactive->edit);
        printf("\n");
        return "";
    }
    if (!line || length <= 0)
        return NULL;
    if (line[0] != '\n')
        history(interactive->history, &event, H_ENTER, line);
    *n = (size_t)length - (line[length - 1] == '\n');
    return line;
}

static const char *read_plain(struct interactive *interactive, size_t *n) {
    ssize_t length = getline(&interactive->line, &interactive->line_capacity, stdin);
    if (length <= 0)
        return NULL;
    *n = text_line_bytes(interactive->line, (size_t)length - (interactive->line[length - 1] == '\n'));
    const size_t mark = interactive->is_first ? text_mark_bytes(interactive->line, *n) : 0;
    interactive->is_first = false;
    *n -= mark;
    return interactive->line + mark;
}

// ---- a turn: generating the answer to a line

static enum status write_answer(void *context, const char *bytes, size_t n_bytes) {
    struct interactive *interactive = context;
    text_add_bytes(&interactive->conversation, bytes, n_bytes);
    return output_write(bytes, n_bytes);
}

// The callback for each token: returns STATUS_STOPPED if the user pressed Ctrl-C, which ends the answer.
static enum status check_interrupt(void *context, const struct text_token *token) {
    (void)context, (void)token;
    sigset_t pending;
    int number;
    if (!on_terminal() || sigpending(&pending) != 0 || !sigismember(&pending, SIGINT))
        return STATUS_OK;
    sigemptyset(&pending);
    sigaddset(&pending, SIGINT);
    sigwait(&pending, &number);
    interrupted = 1;
    return STATUS_STOPPED;
}

static enum status answer(struct interactive *interactive) {
    struct session *session = interactive->session;
    struct prompt one = {interactive->conversation.data, interactive->conversation.length, {0}};
    struct sample_request request = *interactive->request;
    interactive->before_answer = interactive->conversation.length;
    request.prompts = &one;
    request.n_prompts = request.n_samples = 1;
    request.options = interactive->text;
    request.options.first_counter = (uint64_t)interactive->n_turns++ << 32;
    request.begin = NULL;
    request.end = NULL;
    request.write = write_answer;
    request.token = check_interrupt;
    request.context = interactive;
    interrupted = 0;
    enum status status =
        tokenizer_encode_prompt(request.tokenizer, one.bytes, one.n_bytes, request.vocab_size, &one.tokens);
    if (status == STATUS_OK)
        status = sample_run(interactive->generator, &session->stream, &session->hooks, &request, NULL);
    token_list_free(&one.tokens);
    if (status == STATUS_STOPPED && interrupted)
        status = STATUS_OK; // only the answer ends, not the program
    TRY(status);
    return output_write("\n", 1);
}

static enum status take_line(struct interactive *interactive, const char *line, size_t n) {
    struct text *text = &interactive->conversation;
    if (text->length > 0)
        text_add(text, "\n");
    text_add(text, "%s", in_prefix);
    text_add_bytes(text, line, n);
    text_add(text, "%s", in_suffix);
    return answer(interactive);
}

// ---- the commands of --interactive, such as /set

static void clear(struct interactive *interactive) {
    text_free(&interactive->conversation);
    interactive->before_answer = 0;
}

static void print_help(void) {
    printf("Type a line: the model continues the text. Ctrl-C stops the text, Ctrl-D ends the program.\n"
           "  /again           another answer to the last line\n"
           "  /new             begins a new text, without the lines so far\n"
           "  /set NAME VALUE  temperature, top_k, top_p, min_p, repetition_penalty, tokens or seed\n"
           "  /set             prints these settings\n"
           "  /quit            ends the program\n");
}

static void print_settings(const struct interactive *interactive) {
    const struct text_options *text = &interactive->text;
    printf("temperature %g  top_k %d  top_p %g  min_p %g  repetition_penalty %g  tokens %lld  seed %llu\n",
           text->sampling.temperature, text->sampling.top_k, text->sampling.top_p, text->sampling.min_p,
           text->repetition_penalty, (long long)text->n_tokens, (unsigned long long)text->sampling.seed);
}

static void change_setting(struct interactive *interactive, const char *name, const char *value) {
    struct text_options *text = &interactive->text;
    struct sampling *sampling = &text->sampling;
    char *end;
    double number = strtod(value, &end);
    const struct {
        const char *name;
        double minimum, maximum;
        double *number;
        bool whole;
    } settings[] = {{"temperature", 0, 1e3, &sampling->temperature, false},
                    {"top_p", 0, 1, &sampling->top_p, false},
                    {"min_p", 0, 1, &sampling->min_p, false},
                    {"repetition_penalty", 0.1, 10, &text->repetition_penalty, false},
                    {"top_k", 0, 1e9, NULL, true},
                    {"tokens", 1, 1e9, NULL, true},
                    {"seed", 0, 0x1p53, NULL, true}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        if (strcmp(settings[i].name, name) != 0)
            continue;
        if (end == value || *end || !(number >= settings[i].minimum && number <= settings[i].maximum) ||
            (settings[i].whole && number != (double)(int64_t)number)) {
            printf("%s: expected %s from %.15g to %.15g, not \"%s\"\n", name,
                   settings[i].whole ? "an integer" : "a number", settings[i].minimum, settings[i].maximum,
                   value);
            return;
        }
        if (settings[i].number)
            *settings[i].number = number;
        else if (strcmp(name, "top_k") == 0)
            sampling->top_k = (int)number;
        else if (strcmp(name, "tokens") == 0)
            text->n_tokens = (int64_t)number;
        else
            sampling->seed = (uint64_t)number;
        return;
    }
    printf("there is no setting \"%s\"; see /help\n", name);
}

static enum status run_command(struct interactive *interactive, const char *line) {
    char word[16] = "", name[32] = "", value[64] = "";
    int n = sscanf(line, "%15s %31s %63s", word, name, value);
    if (strcmp(word, "/quit") == 0) {
        interactive->quit = true;
    } else if (strcmp(word, "/new") == 0) {
        clear(interactive);
    } else if (strcmp(word, "/again") == 0) {
        if (interactive->conversation.length == 0) {
            printf("there is no line to answer yet\n");
            return STATUS_OK;
        }
        interactive->conversation.length = interactive->before_answer;
        return answer(interactive);
    } else if (strcmp(word, "/set") == 0 && n == 3) {
        change_setting(interactive, name, value);
    } else if (strcmp(word, "/set") == 0 && n == 1) {
        print_settings(interactive);
    } else {
        if (strcmp(word, "/help") != 0)
            printf("there is no command \"%s\"\n", line);
        print_help();
    }
    return output_flush();
}

static enum status take_lines(struct interactive *interactive) {
    while (!interactive->quit) {
        size_t n;
        const char *line = interactive->terminal ? read_edited(interactive, &n) : read_plain(interactive, &n);
        if (!line)
            break;
        if (n == 0)
            continue;
        char *copy = copy_bytes(line, n);
        enum status status =
            copy[0] == '/' ? run_command(interactive, copy) : take_line(interactive, line, n);
        free(copy);
        TRY(status);
    }
    if (!interactive->terminal && ferror(stdin))
        return FAIL(STATUS_FAILED, "cannot read standard input: %s", strerror(errno));
    return STATUS_OK;
}

static enum status open_editor(struct interactive *interactive) {
    HistEvent event;
    setlocale(LC_CTYPE, ""); // typed characters have the encoding of the user's locale
    interactive->edit = el_init("train", stdin, stdout, stderr);
    interactive->history = history_init();
    if (!interactive->edit || !interactive->history)
        return FAIL(STATUS_FAILED, "cannot edit lines on this terminal (TERM is \"%s\")",
                    getenv("TERM") ? getenv("TERM") : "");
    history(interactive->history, &event, H_SETSIZE, HISTORY_LINES);
    history(interactive->history, &event, H_SETUNIQUE, 1);
    el_set(interactive->edit, EL_PROMPT, prompt_text);
    el_set(interactive->edit, EL_EDITOR, "emacs");
    el_set(interactive->edit, EL_GETCFN, read_character);
    el_set(interactive->edit, EL_HIST, history, interactive->history);
    el_source(interactive->edit, NULL); // reads the user's ~/.editrc
    log_info("type a line, and the model continues it; /help lists commands, Ctrl-D ends");
    return STATUS_OK;
}

// Reads and answers lines until the end of the input or /quit. On a terminal, lines are read with a prompt,
// line editing and history; lines of a pipe or a file are read without these.
static enum status run_interactive(struct session *session, struct generator *generator,
                                   const struct sample_request *request) {
    struct interactive interactive = {.session = session,
                                      .generator = generator,
                                      .request = request,
                                      .text = request->options,
                                      .terminal = on_terminal(),
                                      .is_first = true};
    enum status status = interactive.terminal ? open_editor(&interactive) : STATUS_OK;
    if (status == STATUS_OK)
        status = take_lines(&interactive);
    if (interactive.edit)
        el_end(interactive.edit);
    if (interactive.history)
        history_end(interactive.history);
    text_free(&interactive.conversation);
    free(interactive.line);
    return status;
}

// ---- the command

// Tokenizes the prompts.
//   longest   [out] number of tokens of the longest prompt
static enum status encode_prompts(const struct prompts *prompts, const struct session *session,
                                  int *longest) {
    *longest = 0;
    for (int64_t i = 0; i < prompts->n; i++) {
        struct prompt *one = &prompts->prompts[i];
        TRY(tokenizer_encode_prompt(session->tokenizer, one->bytes, one->n_bytes,
                                    session->params.config.vocab_size, &one->tokens));
        if (one->tokens.n > (size_t)*longest)
            *longest = (int)one->tokens.n;
    }
    return STATUS_OK;
}

// Warns of prompts that are longer than the model's context. Of such a prompt, only the last n_positions /
// 2 tokens are used (infer/batch.h).
static void warn_of_long_prompts(const struct session *session, int64_t n_prompts, int longest) {
    const int positions = session->params.config.n_positions;
    if (longest > positions)
        log_warning(
            "the %sprompt has %d tokens, more than the model's context of %d: it is cut to its last %d, "
            "half of the context, to leave room for new tokens",
            n_prompts > 1 ? "longest " : "", longest, positions, positions > 1 ? positions / 2 : 1);
}

static struct sample_request make_request(const struct session *session,
                                          const struct generator_options *options) {
    return (struct sample_request){.tokenizer = session->tokenizer,
                                   .vocab_size = session->params.config.vocab_size,
                                   .positions = options->positions,
                                   .sequences = options->sequences,
                                   .n_samples = n_samples,
                                   .options = {.sampling = {.temperature = temperature,
                                                            .top_k = (int)top_k,
                                                            .top_p = top_p,
                                                            .min_p = min_p,
                                                            .seed = (uint64_t)seed},
                                               .repetition_penalty = repetition_penalty,
                                               .n_tokens = n_tokens,
                                               .n_top = (int)n_logprobs,
                                               .stops = stops.strings,
                                               .n_stops = stops.n}};
}

static enum status write_samples(struct session *session, struct generator *generator,
                                 struct sample_request request, const struct prompts *prompts) {
    struct json_text json = {.tokenizer = session->tokenizer};
    double began = clock_monotonic_s();
    int64_t made = 0;
    request.prompts = prompts->prompts;
    request.n_prompts = prompts->n;
    request.begin = as_json ? begin_json : begin_text;
    request.write = as_json ? add_json_text : write_out;
    request.token = as_json && n_logprobs >= 0 ? add_json_token : NULL;
    request.end = as_json ? end_json : NULL;
    request.context = &json;
    enum status status = sample_run(generator, &session->stream, &session->hooks, &request, &made);
    text_free(&json.text);
    free(json.tokens);
    TRY(status);
    if (!as_json)
        printf("\n");
    if (log_is_terminal())
        log_info("%.1f tokens/s", (double)made / (clock_monotonic_s() - began));
    return STATUS_OK;
}

static enum status run_session(struct session *session, struct generator *generator,
                               const struct generator_options *options, const struct prompts *prompts) {
    const struct sample_request request = make_request(session, options);
    return interacts ? run_interactive(session, generator, &request)
                     : write_samples(session, generator, request, prompts);
}

// Chooses the sizes of the key-value cache: positions for the longest possible text, and at most as many
// sequences as there are texts.
static struct generator_options choose_options(const struct session *session, int64_t n_prompts,
                                               int longest) {
    int64_t most = longest + n_tokens, n_texts = n_prompts * n_samples;
    int n_positions = session->params.config.n_positions;
    if (interacts)
        return (struct generator_options){.type = session->type,
                                          .positions = n_positions,
                                          .sequences = 1,
                                          .mask_documents = session->masks_documents};
    return (struct generator_options){.type = session->type,
                                      .positions = most < n_positions ? (int)most : n_positions,
                                      .sequences = (int)(n_texts < batch ? n_texts : batch),
                                      .mask_documents = session->masks_documents};
}

static enum status generate(struct session *session, struct prompts *prompts) {
    struct generator *generator = NULL;
    int longest;
    TRY(session_open(session, &model));
    TRY(encode_prompts(prompts, session, &longest));
    warn_of_long_prompts(session, prompts->n, longest);
    const struct generator_options options = choose_options(session, prompts->n, longest);
    enum status status = session_load_generator(session, &options, &generator);
    if (status == STATUS_OK)
        status = run_session(session, generator, &options, prompts);
    generator_delete(generator);
    return status;
}

// Refuses flags that contradict each other.
static enum status check_flags(void) {
    if (prompt && prompts_path)
        return FAIL(STATUS_INVALID, "train generate: --prompt and --prompts cannot be combined");
    if (interacts && (prompt || prompts_path || as_json || n_samples > 1))
        return FAIL(STATUS_INVALID, "train generate: --interactive reads its prompts line by line; leave out "
                                    "--prompt, --prompts, --samples and --json");
    if (!interacts && (in_prefix[0] || in_suffix[0]))
        return FAIL(STATUS_INVALID, "train generate: --in-prefix and --in-suffix need --interactive");
    if (field && !prompts_path)
        return FAIL(STATUS_INVALID, "train generate: --field needs --prompts");
    if (n_logprobs >= 0 && !as_json)
        return FAIL(STATUS_INVALID, "train generate: --logprobs needs --json");
    for (int i = 0; i < stops.n; i++)
        if (!stops.strings[i][0])
            return FAIL(STATUS_INVALID, "train generate: --stop is empty, expected a string");
    return STATUS_OK;
}

static enum status run_generate(int n_args, char **args) {
    int n_paths;
    struct session session = {0};
    TRY(args_parse("generate", flags, sizeof flags / sizeof *flags, n_args, args, &model.path, 1, &n_paths));
    if (n_paths == 0)
        return FAIL(STATUS_INVALID, "train generate: expected a run or checkpoint; see: train help generate");
    TRY(check_flags());
    struct prompts prompts = {0};
    enum status status = STATUS_OK;
    if (interacts)
        prepare_interactive();
    if (prompts_path) {
        status = prompts_read(&prompts, prompts_path);
    } else {
        prompts = (struct prompts){.prompts = allocate(1, sizeof *prompts.prompts), .n = 1};
        prompts.prompts[0] = (struct prompt){prompt ? prompt : "", prompt ? strlen(prompt) : 0, {0}};
    }
    if (status == STATUS_OK)
        status = generate(&session, &prompts);
    session_close(&session);
    prompts_free(&prompts);
    return status;
}

const struct command command_generate = {
    .name = "generate",
    .synopsis =
        "RUN_OR_CHECKPOINT [--prompt TEXT | --prompts FILE | --interactive] [--tokens N] [--samples N] "
        "[--temperature X] [--top-k K] [--top-p P] [--min-p P] [--stop TEXT] [--seed S] [--json]",
    .summary = "generate text with a trained model",
    .details =
        "Texts are printed in order, prompt by prompt, separated by a line of ---. Up to --batch texts are\n"
        "generated together: each step reads the weights once for all of them. Random numbers depend\n"
        "only on the seed and the index of the text. On the CPU, texts do not depend on --batch; on a GPU,\n"
        "rounding may differ with the batch and occasionally change a token.\n"
        "Filters work in this order: repetition penalty, temperature, top-k, top-p, min-p.\n"
        "Log-probabilities are the model's, before these filters.",
    .examples = "Continue a text.\n"
                "./train generate runs/quickstart --prompt 'In the beginning' --tokens 200\n"
                "The most likely continuation of each line of a file, as JSON.\n"
                "./train generate runs/quickstart --prompts lines.txt --temperature 0 --json\n"
                "Try one prompt after the other.\n"
                "./train generate runs/quickstart --interactive\n",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_generate,
};
