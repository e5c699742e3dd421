// See zero/optimizer/muon_rounds.h.
#include "zero/optimizer/muon_rounds.h"

#include <stdlib.h>

#include "base/alloc.h"

int muon_matrices(const struct param *param, struct matrix_shape shapes[PARAM_PARTS_MOST],
                  int64_t first_row[PARAM_PARTS_MOST]) {
    for (int i = 0; i < param->n_parts; i++) {
        shapes[i] = (struct matrix_shape){param->parts[i].n_rows, param->shape[1]};
        first_row[i] = param->parts[i].first_row;
    }
    if (param->n_parts > 0)
        return param->n_parts;
    shapes[0] = (struct matrix_shape){param->shape[0], param->shape[1]};
    first_row[0] = 0;
    return 1;
}

double muon_tensor_flops(const struct param *param, int strip) {
    struct matrix_shape shapes[PARAM_PARTS_MOST];
    int64_t first_row[PARAM_PARTS_MOST];
    double flops = 0;
    for (int i = muon_matrices(param, shapes, first_row) - 1; i >= 0; i--)
        flops += newton_schulz_flops(shapes[i], strip);
    return flops;
}

// ---- workers

// Compares tensors for sorting: by FLOPs, then by rows, both descending, then in the order of the model.
static int compare_cost(const void *a, const void *b) {
    const struct muon_tensor *x = a, *y = b;
    if (x->flops != y->flops)
        return x->flops < y->flops ? 1 : -1;
    return x->rows != y->rows ? (x->rows < y->rows ? 1 : -1) : x->param - y->param;
}

// Finds the next span of the partition, from span *i on, that overlaps a tensor. Elements [*begin, *end) of
// the tensor's unit are the overlap. Returns false if there is none. The caller increments *i before the
// next call.
static bool next_overlap(const struct partition *partition, const struct param *param, int *i, size_t *begin,
                         size_t *end) {
    const size_t first = param->offset, last = param->offset + param->elements;
    for (; *i < partition->first_span[param->unit + 1]; ++*i) {
        const struct partition_span *span = &partition->spans[*i];
        *begin = span->begin > first ? span->begin : first;
        *end = span->end < last ? span->end : last;
        if (*begin < *end)
            return true;
    }
    return false;
}

// Returns the rank with the least load among those that may orthogonalize a tensor; of equals, the lowest.
//   n_choices   [out] number of ranks that may orthogonalize it
static int choose_worker(const struct muon_rounds *rounds, const struct param *param, const double *load,
                         int *n_choices) {
    const struct partition *partition = rounds->partition;
    size_t begin, end;
    int best = -1;
    for (int rank = 0; rank < rounds->world && rounds->whole; rank++)
        best = best < 0 || load[rank] < load[best] ? rank : best;
    *n_choices = rounds->whole ? rounds->world : 0;
    for (int i = partition->first_span[param->unit];
         !rounds->whole && next_overlap(partition, param, &i, &begin, &end); i++, ++*n_choices) {
        const int owner = partition->spans[i].owner;
        if (best < 0 || load[owner] < load[best] || (load[owner] == load[best] && owner < best))
            best = owner;
    }
    return best;
}

// First assigns the tensors that only one rank may take, then the others, each to the least loaded rank.
static void choose_workers(struct muon_rounds *rounds, double *load) {
    for (int others = 0; others < 2; others++)
        for (int i = 0; i < rounds->n_tensors; i++) {
            struct muon_tensor *tensor = &rounds->tensors[i];
            int n_choices;
            const int best = choose_worker(rounds, &rounds->params->params[tensor->param], load, &n_choices);
            if ((n_choices > 1) != others)
                continue;
            tensor->worker = best;
            load[best] += tensor->flops;
        }
}

// Moves each tensor to another rank if that lowers the higher of the two ranks' loads. Returns true if any
// tensor moved.
static bool move_tensors(struct muon_rounds *rounds, double *load) {
    bool moved = false;
    for (int i = 0; i < rounds->n_tensors; i++) {
        struct muon_tensor *tensor = &rounds->tensors[i];
        int n_choices;
        const int best = choose_worker(rounds, &rounds->params->params[tensor->param], load, &n_choices);
        if (load[best] + tensor->flops >= load[tensor->worker])
            continue;
        load[tensor->worker] -= tensor->flops;
        load[best] += tensor->flops;
        tensor->worker = best;
        moved = true;
    }
    return moved;
}

static void sort_by_round(struct muon_rounds *rounds, const int *round_of, struct muon_tensor *out) {
    int n = 0;
    for (int round = 0; round < rounds->n_rounds; round++) {
        rounds->rounds[round].first_tensor = n;
        for (int i = 0; i < rounds->n_tensors; i++)
            if (round_of[i] == round)
                out[n++] = rounds->tensors[i];
        rounds->rounds[round].n_tensors = n - rounds->rounds[round].first_tensor;
    }
}

// The last round so far in which a worker has tensors, and the number of their elements.
struct filling {
    int round;
    size_t filled;
};

// Returns the round for a tensor: its worker's last round if the tensor fits in, else the next one. Updates
// *worker.
static int choose_round(const struct muon_rounds *rounds, const struct muon_tensor *tensor,
                        struct filling *worker) {
    const size_t elements = region_padded(rounds->params->params[tensor->param].elements);
    if (worker->filled > 0 && worker->filled + elements > rounds->most_elements) {
        worker->round++;
        worker->filled = 0;
    }
    worker->filled += elements;
    return worker->round;
}

static void assign_workers(struct muon_rounds *rounds) {
    double *load = allocate((size_t)rounds->world, sizeof *load);
    struct filling *fillings = allocate((size_t)rounds->world, sizeof *fillings);
    int *round_of = allocate((size_t)rounds->n_tensors, sizeof *round_of);
    struct muon_tensor *sorted = allocate((size_t)rounds->n_tensors, sizeof *sorted);
    qsort(rounds->tensors, (size_t)rounds->n_tensors, sizeof *rounds->tensors, compare_cost);
    choose_workers(rounds, load);
    // Each move lowers the sum of the squared loads, so the loop ends; a few passes suffice.
    for (int pass = 0; pass < rounds->n_tensors && move_tensors(rounds, load); pass++)
        continue;
    for (int i = 0; i < rounds->n_tensors; i++) {
        round_of[i] = choose_round(rounds, &rounds->tensors[i], &fillings[rounds->tensors[i].worker]);
        if (round_of[i] == rounds->n_rounds)
            rounds->n_rounds++;
    }
    rounds->rounds = allocate((size_t)rounds->n_rounds, sizeof *rounds->rounds);
    sort_by_round(rounds, round_of, sorted);
    free(rounds->tensors);
    rounds->tensors = sorted;
    free(load);
    free(fillings);
    free(round_of);
}

// ---- tensors in the buffers of workers

// Sets the offset of each tensor in its worker's buffer. Each is aligned as if it had a buffer of its own,
// because products of less aligned matrices could have other bits.
//   filled   (world) scratch
static void place_tensors(struct muon_rounds *rounds, size_t *filled) {
    for (int k = 0; k < rounds->n_rounds; k++) {
        const struct muon_round *round = &rounds->rounds[k];
        for (int rank = 0; rank < rounds->world; rank++)
            filled[rank] = 0;
        for (int i = round->first_tensor; i < round->first_tensor + round->n_tensors; i++) {
            struct muon_tensor *tensor = &rounds->tensors[i];
            const size_t end = filled[tensor->worker] + rounds->params->params[tensor->param].elements;
            tensor->at = filled[tensor->worker];
            filled[tensor->worker] = region_padded(end);
            if (end > rounds->tensor_elements)
                rounds->tensor_elements = end;
        }
    }
}

// ---- slices of the tensors

// Appends a tensor's slices to the buffers of the ranks that update it. Returns the number of slices.
//   filled   (world) elements of each rank's buffer in use; the call adds the slices
//   out      [out] the slices; NULL: not wanted
static int add_slices(const struct muon_rounds *rounds, int tensor, size_t *filled, struct muon_slice *out) {
    const struct partition *partition = rounds->partition;
    const struct param *param = &rounds->params->params[rounds->tensors[tensor].param];
    size_t begin = param->offset, end = param->offset + param->elements;
    int n = 0;
    for (int rank = 0; rank < rounds->world && rounds->whole; rank++, n++) {
        if (out)
            out[n] = (struct muon_slice){tensor, rank, begin, end, filled[rank]};
        filled[rank] += end - begin;
    }
    for (int i = partition->first_span[param->unit];
         !rounds->whole && next_overlap(partition, param, &i, &begin, &end); i++, n++) {
        const int owner = partition->spans[i].owner;
        if (out)
            out[n] = (struct muon_slice){tensor, owner, begin, end, filled[owner]};
        filled[owner] += end - begin;
    }
    return n;
}

static void list_slices(struct muon_rounds *rounds, size_t *filled, struct muon_slice *out) {
    int n = 0;
    for (int k = 0; k < rounds->n_rounds; k++) {
        struct muon_round *round = &rounds->rounds[k];
        for (int rank = 0; rank < rounds->world; rank++)
            filled[rank] = 0;
        round->first_slice = n;
        for (int i = 0; i < round->n_tensors; i++)
            n += add_slices(rounds, round->first_tensor + i, filled, out ? out + n : NULL);
        round->n_slices = n - round->first_slice;
        for (int rank = 0; rank < rounds->world; rank++)
            if (filled[rank] > rounds->slice_elements)
                rounds->slice_elements = filled[rank];
    }
    rounds->n_slices = n;
}

static void fill_buffers(struct muon_rounds *rounds) {
    size_t *filled = allocate((size_t)rounds->world, sizeof *filled);
    place_tensors(rounds, filled);
    list_slices(rounds, filled, NULL);
    rounds->slices = allocate((size_t)rounds->n_slices, sizeof *rounds->slices);
    list_slices(rounds, filled, rounds->slices);
    free(filled);
}

// ---- transfers between slices and tensors

// True if the rank of a slice sends the slice's direction to the tensor's worker. In stage 0 only the
// worker itself does, because its own slice is the whole tensor.
static bool sends_direction(const struct muon_rounds *rounds, const struct muon_slice *slice) {
    return !rounds->whole || slice->rank == rounds->tensors[slice->tensor].worker;
}

static void link_round(const struct muon_rounds *rounds, struct muon_round *round, struct comm_span *there,
                       struct comm_span *back) {
    round->there = (struct comm_transfer){.spans = there};
    round->back = (struct comm_transfer){.spans = back};
    for (int i = round->first_slice; i < round->first_slice + round->n_slices; i++) {
        const struct muon_slice *slice = &rounds->slices[i];
        const struct muon_tensor *tensor = &rounds->tensors[slice->tensor];
        const size_t n = slice->end - slice->begin,
                     at = tensor->at + slice->begin - rounds->params->params[tensor->param].offset;
        if (sends_direction(rounds, slice)) {
            there[round->there.n_spans++] = (struct comm_span){
                .owner = slice->rank, .to = tensor->worker, .in = slice->at, .out = at, .elements = n};
            round->there.elements += n;
        }
        back[round->back.n_spans++] = (struct comm_span){
            .owner = tensor->worker, .to = slice->rank, .in = at, .out = slice->at, .elements = n};
        round->back.elements += n;
        round->sends |= slice->rank != tensor->worker;
    }
}

static void link_rounds(struct muon_rounds *rounds) {
    rounds->spans = allocate(2 * (size_t)rounds->n_slices, sizeof *rounds->spans);
    for (int k = 0; k < rounds->n_rounds; k++) {
        struct muon_round *round = &rounds->rounds[k];
        struct comm_span *there = rounds->spans + 2 * round->first_slice, *back = there + round->n_slices;
        link_round(rounds, round, there, back);
        comm_spans_link(there, round->there.n_spans);
        comm_spans_link(back, round->back.n_spans);
    }
}

// ---- all rounds

void muon_rounds_init(struct muon_rounds *rounds, const struct stage *stage,
                      const struct optimizer_groups *groups, size_t most_elements) {
    const struct params *params = stage->params;
    *rounds = (struct muon_rounds){.params = params,
                                   .partition = stage->partition,
                                   .world = stage->world,
                                   .whole = !stage_shards_optimizer(stage->config),
                                   .most_elements = most_elements};
    rounds->tensors = allocate((size_t)params->n_params, sizeof *rounds->tensors);
    for (int i = 0; i < params->n_params; i++)
        if (optimizer_groups_orthogonalize(groups, i))
            rounds->tensors[rounds->n_tensors++] =
                (struct muon_tensor){.param = i,
                                     .rows = params->params[i].shape[0],
                                     .flops = muon_tensor_flops(&params->params[i], 0)};
    assign_workers(rounds);
    fill_buffers(rounds);
    link_rounds(rounds);
}

void muon_rounds_free(struct muon_rounds *rounds) {
    free(rounds->tensors);
    free(rounds->slices);
    free(rounds->rounds);
    free(rounds->spans);
    *rounds = (struct muon_rounds){0};
}

// ---- exchanges

static enum status copy_own(int rank, struct stream *stream, const struct comm_transfer *transfer,
                            const void *in, void *out, size_t size) {
    for (int i = 0; i < transfer->n_spans; i++) {
        const struct comm_span *span = &transfer->spans[i];
        if (span->owner == rank)
            TRY(stream->device->copy(stream, (char *)out + span->out * size,
                                     (const char *)in + span->in * size, span->elements * size));
    }
    return STATUS_OK;
}

enum status muon_rounds_exchange(const struct muon_round *round, const struct comm_transfer *transfer,
                                 struct comm *comm, struct stream *stream, const void *in, void *out,
                                 enum dtype type) {
    comm_work work;
    if (!round->sends)
        return copy_own(comm->rank, stream, transfer, in, out, dtype_size(type));
    TRY(comm_exchange(comm, stream, transfer, in, out, type, &work));
    return comm_wait(comm, stream, work);
}

// Returns the number of elements that `rank` sends to other ranks in a transfer.
static uint64_t sent_by(int rank, const struct comm_transfer *transfer) {
    uint64_t elements = 0;
    for (int i = 0; i < transfer->n_spans; i++) {
        const struct comm_span *span = &transfer->spans[i];
        elements += span->owner == rank && span->to != rank ? span->elements : 0;
    }
    return elements;
}

void muon_rounds_traffic(const struct muon_rounds *rounds, int rank, uint64_t *elements, uint64_t *calls) {
    *elements = *calls = 0;
    for (int k = 0; k < rounds->n_rounds; k++) {
        const struct muon_round *round = &rounds->rounds[k];
        *elements += sent_by(rank, &round->there) + sent_by(rank, &round->back);
        *calls += round->sends ? 2 : 0;
    }
}
