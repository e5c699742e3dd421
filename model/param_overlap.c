// Tensors of a unit are sorted by offset, so the first one behind the span ends the walk.
#include "model/param_overlap.h"

bool params_next_overlap(const struct params *params, int unit, size_t begin, size_t end,
                         struct param_overlap *overlap) {
    const struct param_unit *u = &params->units[unit];
    // An overlap that was found is not empty: its end is above 0.
    int i = overlap->end > 0 ? overlap->param + 1 : u->first_param;
    for (; i < u->first_param + u->n_params && params->params[i].offset < end; i++) {
        const struct param *param = &params->params[i];
        size_t param_end = param->offset + param->elements;
        *overlap = (struct param_overlap){.param = i,
                                          .begin = param->offset > begin ? param->offset : begin,
                                          .end = param_end < end ? param_end : end};
        if (overlap->begin < overlap->end)
            return true;
    }
    return false;
}
