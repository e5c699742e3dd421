#include "cli/bench/requests.h"

#include <stdio.h>
#include <string.h>

enum status bench_answer_requests(const char *description, bench_measure *measure, void *context) {
    char request[128];
    double figure;
    printf("ready %s\n", description);
    fflush(stdout);
    while (fgets(request, sizeof request, stdin)) {
        request[strcspn(request, "\n")] = '\0';
        TRY(measure(context, request, &figure));
        printf("%.9g\n", figure);
        fflush(stdout);
    }
    return STATUS_OK;
}
