#include "trainer/runs/run_samples.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

// The step in "step-00000123.txt"; -1 for other names.
static int64_t step_of(const char *name) {
    long long step;
    int end = 0;
    if (sscanf(name, "step-%18lld.txt%n", &step, &end) != 1 || end == 0 || name[end] != '\0' || step < 0)
        return -1;
    return step;
}

static int ascending(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

enum status run_samples_list(const char *run, int64_t **steps, int *n) {
    struct file_list names = {0};
    char *folder = file_path("%s/samples", run);
    *n = 0;
    *steps = NULL;
    if (folder && file_is_folder(folder) && file_list_folder(&names, folder) != STATUS_OK)
        status_clear();
    if (folder)
        *steps = malloc(((size_t)names.n_paths + 1) * sizeof **steps);
    for (int i = 0; *steps && i < names.n_paths; i++) {
        (*steps)[*n] = step_of(names.paths[i]);
        *n += (*steps)[*n] >= 0;
    }
    if (*n > 0)
        qsort(*steps, (size_t)*n, sizeof **steps, ascending);
    file_list_free(&names);
    free(folder);
    return *steps ? STATUS_OK : FAIL(STATUS_FAILED, "out of memory for the samples of %s", run);
}

char *run_samples_read(const char *run, int64_t step, size_t most, size_t *length) {
    int descriptor = -1;
    char *path = file_path("%s/samples/step-%08lld.txt", run, (long long)step), *text = malloc(most + 1);
    ssize_t n = -1;
    if (path && text && file_open_regular(path, O_RDONLY, &descriptor) == STATUS_OK) {
        n = read(descriptor, text, most);
        close(descriptor);
    } else
        status_clear();
    free(path);
    if (n < 0) {
        free(text);
        return NULL;
    }
    *length = (size_t)n;
    if (*length == most) // probably cut: go back to where a character begins
        while (*length > 0 && ((unsigned char)text[--*length] & 0xC0) == 0x80)
            ;
    return text;
}
