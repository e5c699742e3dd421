// See cli/tokenize/show.h.
#include "cli/tokenize/show.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

#define LIVE_S 0.5
#define LINE_S 60

enum { N_FIELDS = 5 };

void show_begin(struct show *show, uint64_t done, uint64_t total) {
    const double now_s = clock_monotonic_s();
    *show = (struct show){now_s, now_s, done, total};
}

static void describe(const struct show *show, double now_s, uint64_t done, uint64_t tokens,
                     struct log_field fields[N_FIELDS]) {
    char number[32], of[32];
    const double elapsed_s = now_s - show->began_s,
                 rate = elapsed_s > 0 ? (double)(done - show->began_bytes) / elapsed_s : 0;
    static const int ranks[N_FIELDS] = {0, 2, 3, 4, 1};
    for (int i = 0; i < N_FIELDS; i++)
        fields[i] = (struct log_field){.rank = ranks[i]};
    text_bytes(number, sizeof number, (double)done);
    if (show->total > 0) {
        snprintf(fields[0].text, sizeof fields[0].text, "%3.0f %%", 100 * (double)done / (double)show->total);
        snprintf(fields[1].text, sizeof fields[1].text, "%s of %s", number,
                 text_bytes(of, sizeof of, (double)show->total));
    } else
        snprintf(fields[1].text, sizeof fields[1].text, "%s", number);
    snprintf(fields[2].text, sizeof fields[2].text, "%s tokens", text_count(of, sizeof of, (double)tokens));
    snprintf(fields[3].text, sizeof fields[3].text, "%.1f MB/s", rate / 1e6);
    if (show->total >= done && rate > 0 && show->total > 0)
        snprintf(fields[4].text, sizeof fields[4].text, "%s left",
                 text_duration(of, sizeof of, (double)(show->total - done) / rate));
}

void show_progress(struct show *show, uint64_t done, uint64_t tokens) {
    const double now_s = clock_monotonic_s();
    const bool live = log_is_terminal();
    struct log_field fields[N_FIELDS];
    char line[256];
    if (now_s - show->shown_s < (live ? LIVE_S : LINE_S))
        return;
    show->shown_s = now_s;
    describe(show, now_s, done, tokens, fields);
    if (live)
        log_live(fields, N_FIELDS);
    else
        log_info("%s", log_join_fields(fields, N_FIELDS, sizeof line - 1, line, sizeof line));
}

void show_end(void) {
    log_live_end();
}
