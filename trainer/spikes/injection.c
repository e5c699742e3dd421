// See the header.
#include "trainer/spikes/injection.h"

#include <stdlib.h>
#include <string.h>

float injection_factor(int64_t at) {
    const char *list = getenv("ZERO_INJECT_GRADIENTS");
    while (list && *list) {
        char *end;
        const long long step = strtoll(list, &end, 10);
        if (*end != ':')
            return 1;
        const float factor = strtof(end + 1, &end);
        if (step == at)
            return factor;
        list = *end == ',' ? end + 1 : end;
        if (!strchr("0123456789", *list))
            return 1;
    }
    return 1;
}
