// Cells are texts; widths are counted in characters, as there is a plus-minus sign.
#include "cli/eval/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/output.h"
#include "base/text.h"

#define TABLE_WIDTH 100
#define GAP         "   "

static double loss_of(const struct eval_totals *totals) {
    return text_plain_nan(totals->loss / (double)totals->tokens);
}

static double bits_per_byte_of(const struct eval_totals *totals) {
    return text_plain_nan(totals->bytes > 0 ? totals->loss / log(2) / (double)totals->bytes : NAN);
}

static enum status print(struct text *text) {
    enum status status = text_status(text);
    if (status == STATUS_OK && text->data)
        fputs(text->data, stdout);
    text_free(text);
    return status == STATUS_OK ? output_flush() : status;
}

enum status eval_report_json(const struct eval_result *result) {
    const struct eval_totals *totals = &result->totals;
    struct text text = {0};
    char number[3][32];
    text_add(&text, "{\"run\": ");
    json_add_string(&text, result->path);
    if (result->has_data)
        text_add(
            &text,
            ", \"loss\": %s, \"perplexity\": %s, \"bits_per_byte\": %s, \"tokens\": %lld, \"bytes\": %lld",
            text_double(number[0], loss_of(totals)), text_double(number[1], exp(loss_of(totals))),
            text_double(number[2], bits_per_byte_of(totals)), (long long)totals->tokens,
            (long long)totals->bytes);
    for (int i = 0; i < result->n_tasks; i++) {
        text_add(&text, i ? ", " : ", \"tasks\": {");
        json_add_string(&text, result->task_names[i]);
        text_add(&text, ": ");
        task_result_add_json(&text, &result->tasks[i]);
    }
    text_add(&text, result->n_tasks > 0 ? "}}\n" : "}\n");
    return print(&text);
}

enum status eval_report_lines(const struct eval_result *result) {
    const struct eval_totals *totals = &result->totals;
    struct text text = {0};
    if (result->has_data) {
        text_add(&text, "loss %.4f nats per token, perplexity %.2f", loss_of(totals), exp(loss_of(totals)));
        if (totals->bytes > 0)
            text_add(&text, ", %.4f bits per byte", bits_per_byte_of(totals));
        text_add(&text, " (%lld tokens)\n", (long long)totals->tokens);
    }
    for (int i = 0; i < result->n_tasks; i++) {
        text_add(&text, "%s: ", result->task_names[i]);
        task_result_add_line(&text, &result->tasks[i]);
        text_add(&text, "\n");
    }
    return print(&text);
}

// ---- the table

// Row 0 is the header; then loss, perplexity and bits per byte, if there is data; then the measures of the
// tasks.
static int n_rows(const struct eval_result *result) {
    int n = result->has_data ? 4 : 1;
    for (int i = 0; i < result->n_tasks; i++)
        n += result->tasks[i].n_measures;
    return n;
}

// The measure of a row below the data's. Returns its task.
static int find_measure(const struct eval_result *result, int row, const struct task_measure **measure) {
    int task = 0;
    for (row -= result->has_data ? 4 : 1; row >= result->tasks[task].n_measures; task++)
        row -= result->tasks[task].n_measures;
    *measure = &result->tasks[task].measures[row];
    return task;
}

static bool is_of_task(const struct eval_result *result, int row) {
    return row >= (result->has_data ? 4 : 1);
}

static void add_label(struct text *cell, const struct eval_result *result, int row) {
    static const char *const labels[] = {"", "loss", "perplexity", "bits per byte"};
    const struct task_measure *measure;
    if (!is_of_task(result, row)) {
        text_add(cell, "%s", labels[row]);
        return;
    }
    const int task = find_measure(result, row, &measure);
    text_add(cell, "%s %s", result->task_names[task], measure->name);
}

static void add_cell(struct text *cell, const struct eval_result *result, int row) {
    const struct task_measure *measure;
    const double loss = loss_of(&result->totals), bits_per_byte = bits_per_byte_of(&result->totals);
    if (is_of_task(result, row)) {
        (void)find_measure(result, row, &measure);
        task_measure_add(cell, measure);
    } else if (row == 0)
        text_add(cell, "%s", result->path);
    else if (row == 2)
        text_add(cell, "%.2f", exp(loss));
    else if (row == 3 && isnan(bits_per_byte))
        text_add(cell, "-");
    else
        text_add(cell, "%.4f", row == 1 ? loss : bits_per_byte);
}

static size_t width_of(const struct text *cell) {
    size_t n = 0;
    for (size_t i = 0; i < cell->length; i++)
        n += ((unsigned char)cell->data[i] & 0xc0) != 0x80;
    return n;
}

typedef void cell_writer(struct text *cell, const struct eval_result *result, int row);

static size_t column_width(const struct eval_result *result, cell_writer *write) {
    size_t widest = 0;
    for (int row = 0; row < n_rows(result); row++) {
        struct text cell = {0};
        write(&cell, result, row);
        widest = width_of(&cell) > widest ? width_of(&cell) : widest;
        text_free(&cell);
    }
    return widest;
}

static void add_padded(struct text *out, const struct eval_result *result, int row, cell_writer *write,
                       size_t width) {
    struct text cell = {0};
    write(&cell, result, row);
    const size_t used = width_of(&cell);
    text_add(out, "%s%*s", cell.data ? cell.data : "", used < width ? (int)(width - used) : 0, "");
    out->failed = out->failed || cell.failed;
    text_free(&cell);
}

static void add_table(struct text *out, const struct eval_result *results, int n, size_t label_width) {
    for (int row = 0; row < n_rows(results); row++) {
        add_padded(out, results, row, add_label, label_width);
        for (int i = 0; i < n; i++) {
            text_add(out, GAP);
            add_padded(out, &results[i], row, add_cell, i < n - 1 ? column_width(&results[i], add_cell) : 0);
        }
        text_add(out, "\n");
    }
}

static bool tokenizers_differ(const struct eval_result *results, int n) {
    for (int i = 1; i < n; i++)
        if (results[i].has_data && tokenizer_identity_differs(&results[0].tokenizer, &results[i].tokenizer))
            return true;
    return false;
}

enum status eval_report_table(const struct eval_result *results, int n) {
    struct text text = {0};
    const size_t label_width = n > 0 ? column_width(results, add_label) : 0;
    for (int first = 0; first < n;) {
        size_t width = label_width + strlen(GAP) + column_width(&results[first], add_cell);
        int end = first + 1;
        for (; end < n; end++) {
            width += strlen(GAP) + column_width(&results[end], add_cell);
            if (width > TABLE_WIDTH)
                break;
        }
        text_add(&text, first > 0 ? "\n" : "");
        add_table(&text, results + first, end - first, label_width);
        first = end;
    }
    TRY(print(&text));
    if (tokenizers_differ(results, n))
        log_info("the runs have different tokenizers: loss and perplexity are per token and cannot be "
                 "compared; bits per byte can");
    return STATUS_OK;
}
