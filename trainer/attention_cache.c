// The cache's file: $XDG_CACHE_HOME/zero.c/attention, else ~/.cache/zero.c/attention. A line has the format's
// version, the key, and three figures, separated by tabs; whatever else the file holds is dropped when an
// entry is added.
#include "trainer/attention_cache.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"

#define FORMAT_VERSION 3 // raised when a change of the kernels outdates old times
#define MOST_BYTES     (1 << 20)
#define MOST_LINE      512

static char *cache_folder(void) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && cache[0] == '/')
        return file_path("%s/zero.c", cache);
    return home && home[0] == '/' ? file_path("%s/.cache/zero.c", home) : NULL;
}

static void print_key(const struct attention_cache_key *key, char line[MOST_LINE]) {
    const struct attention_shape *shape = &key->shape;
    snprintf(line, MOST_LINE, "%d\t%s\tcuDNN %s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t", FORMAT_VERSION, key->gpu,
             key->cudnn, dtype_name(shape->type), shape->B, shape->T, shape->H, shape->K, shape->D,
             shape->window, shape->rope);
}

static bool parse_times(const char *figures, struct attention_times *out) {
    int reproducible, end = -1;
    if (sscanf(figures, "%lf\t%lf\t%d%n", &out->flash_s, &out->cudnn_s, &reproducible, &end) != 3 ||
        (figures[end] != '\n' && figures[end] != 0))
        return false;
    out->reproducible = reproducible == 1;
    return isfinite(out->flash_s) && isfinite(out->cudnn_s) && out->flash_s > 0 && out->cudnn_s > 0 &&
           (reproducible == 0 || reproducible == 1);
}

// The file's text, NUL-terminated; NULL when there is none.
static char *read_cache(const char *folder) {
    char *path = file_path("%s/attention", folder), *text = NULL;
    size_t bytes;
    if (path && file_exists(path) && file_read(path, MOST_BYTES, &text, &bytes) == STATUS_OK) {
        char *terminated = realloc(text, bytes + 1);
        if (terminated)
            terminated[bytes] = 0;
        else
            free(text);
        text = terminated;
    } else
        text = NULL;
    status_clear(); // without the file, the times are measured
    free(path);
    return text;
}

static const char *next_line(const char *line) {
    const char *end = strchr(line, '\n');
    return end ? end + 1 : line + strlen(line);
}

bool attention_cache_find(const struct attention_cache_key *key, struct attention_times *out) {
    char wanted[MOST_LINE], *folder = cache_folder(), *text = folder ? read_cache(folder) : NULL;
    bool found = false;
    print_key(key, wanted);
    for (const char *line = text; line && *line && !found; line = next_line(line))
        found = strncmp(line, wanted, strlen(wanted)) == 0 && parse_times(line + strlen(wanted), out);
    free(text);
    free(folder);
    return found;
}

// A line of this format: its first field is the version, its last three are figures.
static bool is_entry(const char *line, size_t length) {
    char copy[MOST_LINE];
    struct attention_times times;
    int n_tabs = 0;
    if (length >= sizeof copy)
        return false;
    memcpy(copy, line, length);
    copy[length] = 0;
    char *figures = copy + length;
    while (figures > copy && (n_tabs += figures[-1] == '\t') < 3)
        figures--;
    return n_tabs == 3 && atoi(copy) == FORMAT_VERSION && parse_times(figures, &times);
}

void attention_cache_add(const struct attention_cache_key *key, const struct attention_times *times) {
    char wanted[MOST_LINE], *folder = cache_folder(), *before = folder ? read_cache(folder) : NULL;
    struct text after = {0};
    print_key(key, wanted);
    for (const char *line = before; line && *line; line = next_line(line)) {
        size_t length = (size_t)(next_line(line) - line);
        if (strncmp(line, wanted, strlen(wanted)) != 0 && is_entry(line, length) && line[length - 1] == '\n')
            text_add_bytes(&after, line, length);
    }
    text_add(&after, "%s%.6g\t%.6g\t%d\n", wanted, times->flash_s, times->cudnn_s, times->reproducible);
    char *path = folder ? file_path("%s/attention", folder) : NULL;
    if (path && !after.failed && file_make_folders(folder) == STATUS_OK &&
        file_write_all(path, after.data, after.length) != STATUS_OK)
        status_clear();
    status_clear(); // the next run measures again
    text_free(&after);
    free(before);
    free(folder);
    free(path);
}
