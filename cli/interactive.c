// The conversation is one text: what the user wrote and what the model wrote, which each turn continues.
// Line editing is libedit's. SIGINT is blocked: it arrives while a character is awaited, and while the model
// writes it is looked for between tokens. Compute threads must not be interrupted (trainer/signals.c).
#include "cli/interactive.h"

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

#include "base/log.h"
#include "base/output.h"
#include "base/text.h"

#define HISTORY_LINES 1000

struct interactive {
    const struct interactive_options *options;
    struct text_options text; // that /set changes
    struct text conversation;
    size_t before_answer; // bytes of the conversation before the model's last answer
    int64_t n_turns;
    bool terminal, quit;
    EditLine *edit; // on a terminal
    History *history;
    char *line; // without a terminal
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

void interactive_prepare(void) {
    if (!on_terminal())
        return;
    struct sigaction action = {.sa_handler = note_interrupt}; // without SA_RESTART: it ends a read
    sigset_t set;
    sigaction(SIGINT, &action, NULL);
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

// ---- reading

static char *prompt_text(EditLine *edit) {
    (void)edit;
    static char text[] = "> ";
    return text;
}

// Reads one character for libedit, whose own function goes on after an interrupt.
static int read_character(EditLine *edit, wchar_t *out) {
    mbstate_t decoder = {0};
    (void)edit;
    for (;;) {
        char byte;
        struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
        sigset_t none;
        sigemptyset(&none);
        bool ready = ppoll(&input, 1, NULL, &none) > 0; // SIGINT arrives only here
        if (interrupted)
            return -1;
        if (!ready)
            continue; // another signal: the program was stopped and went on
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n <= 0)
            return (int)n;
        size_t length = mbrtowc(out, &byte, 1, &decoder);
        if (length == (size_t)-1) // not a character of this locale: it is left out
            decoder = (mbstate_t){0};
        else if (length != (size_t)-2)
            return 1;
    }
}

// One line without its end; NULL at the end of the input. Ctrl-C gives an empty line.
static const char *read_edited(struct interactive *interactive, size_t *n) {
    int length = 0;
    HistEvent event;
    interrupted = 0;
    el_resize(interactive->edit); // the terminal may have another width now
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
    *n = (size_t)length - (interactive->line[length - 1] == '\n');
    return interactive->line;
}

// ---- a turn

static enum status write_answer(void *context, const char *bytes, size_t n_bytes) {
    struct interactive *interactive = context;
    text_add_bytes(&interactive->conversation, bytes, n_bytes);
    TRY(text_status(&interactive->conversation));
    return output_write(bytes, n_bytes);
}

// Whether the user asked to stop the text.
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
    const struct interactive_options *options = interactive->options;
    struct text prompt = {0};
    struct sample_request request = options->request;
    interactive->before_answer = interactive->conversation.length;
    if (interactive->conversation.length > 0)
        text_add_bytes(&prompt, interactive->conversation.data, interactive->conversation.length);
    enum status status = text_status(&prompt);
    request.prompts = &(struct prompt){prompt.data, prompt.length};
    request.n_prompts = request.n_samples = 1;
    request.options = interactive->text;
    request.options.first_counter = (uint64_t)interactive->n_turns++ << 32;
    request.begin = NULL;
    request.end = NULL;
    request.write = write_answer;
    request.token = check_interrupt;
    request.context = interactive;
    interrupted = 0;
    if (status == STATUS_OK)
        status = sample_run(options->generator, &options->session->stream, &options->session->hooks, &request,
                            NULL);
    text_free(&prompt);
    if (status == STATUS_STOPPED && interrupted)
        status = STATUS_OK; // the text is stopped, not the program
    TRY(status);
    return output_write("\n", 1);
}

static enum status take_line(struct interactive *interactive, const char *line, size_t n) {
    struct text *text = &interactive->conversation;
    if (text->length > 0)
        text_add(text, "\n");
    text_add(text, "%s", interactive->options->in_prefix);
    text_add_bytes(text, line, n);
    text_add(text, "%s", interactive->options->in_suffix);
    TRY(text_status(text));
    return answer(interactive);
}

// ---- commands

static void clear(struct interactive *interactive) {
    text_free(&interactive->conversation);
    interactive->before_answer = 0;
}

static void print_help(void) {
    printf("Type a line: the model continues the text. Ctrl-C stops it, Ctrl-D ends the program.\n"
           "  /again           another answer to the last line\n"
           "  /new             forgets the text so far\n"
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
        char *copy = strndup(line, n);
        if (!copy)
            return FAIL(STATUS_FAILED, "out of memory for a line of %zu bytes", n);
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
    setlocale(LC_CTYPE, ""); // the characters that the user types
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
    el_source(interactive->edit, NULL); // the user's ~/.editrc
    log_info("type a line, and the model continues it; /help lists commands, Ctrl-D ends");
    return STATUS_OK;
}

enum status interactive_run(const struct interactive_options *options) {
    struct interactive interactive = {
        .options = options, .text = options->request.options, .terminal = on_terminal()};
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
