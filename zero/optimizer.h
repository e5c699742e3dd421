// One optimizer step over the model states: the global norm, clipping, and the update of the spans that this
// rank updates.
#ifndef ZERO_ZERO_OPTIMIZER_H
#define ZERO_ZERO_OPTIMIZER_H

#include "zero/state.h"

struct optimizer {
    const struct config *config;
    struct state *state;
    int partials_region, host_region;
    double *partials, *host_partials; // sums of squares of blocks: on the device, on the host
    size_t n_partials;
};

// How many sums the norm of one span of so many elements takes.
size_t optimizer_span_partials(size_t elements);
// Adds the norm's buffers to the table; optimizer_bind finds them.
enum status optimizer_init(struct optimizer *optimizer, const struct config *config, struct state *state,
                           struct region_table *table) MUST_CHECK;
void optimizer_bind(struct optimizer *optimizer, const struct region_table *table);

// The global norm of the gradients as they are, scaled if the losses were, in double: each rank's owned spans
// in blocks of SUM_SQUARES_BLOCK, blocks, spans and ranks added in order. The same bits on every rank and in
// every stage.
enum status optimizer_norm(struct optimizer *optimizer, struct stream *stream, double *norm) MUST_CHECK;
// Updates the weights of this rank's spans and lets every rank see them. step counts updates from 1.
// Gradients are first divided by loss_scale and multiplied by min(1, clip / (norm + 1e-6)), as
// torch.nn.utils.clip_grad_norm_ does; norm: of the gradients so divided. Weight decay applies to tensors of
// two or more dimensions.
enum status optimizer_update(struct optimizer *optimizer, struct stream *stream, int64_t step, double lr,
                             double norm, double loss_scale) MUST_CHECK;

#endif
