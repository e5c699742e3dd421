#include "zero/checkpoint/state_digest.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/parallel.h"

// Elements [begin, end) of a unit.
struct chunk {
    int param;
    uint64_t index; // number of the chunk in its tensor
    size_t begin, end;
    int span; // index of the partition's span that has its first element
};

// The chunks of one kind of a unit, in order of elements.
struct chunks {
    const struct state_digest *of;
    enum checkpoint_kind kind;
    int unit, n;
    struct chunk *list;     // (n)
    struct digest *digests; // (n)
    // The first failure to read on this rank, which still takes part in the collectives that others wait for.
    enum status failure;
};

static bool has_kind(const struct checkpoint_kinds *kinds, enum checkpoint_kind kind, int param) {
    if (kind == CHECKPOINT_AVERAGE)
        return kinds->has_average;
    return (int)kind < kinds->n &&
           (kind == CHECKPOINT_MASTER || !kinds->n_moments || (int)kind <= kinds->n_moments[param]);
}

static void list_chunks(struct chunks *chunks) {
    const struct state_digest *of = chunks->of;
    const struct param_unit *unit = &of->params->units[chunks->unit];
    int span = of->partition->first_span[chunks->unit];
    chunks->n = 0;
    for (int param = unit->first_param; param < unit->first_param + unit->n_params; param++) {
        const struct param *tensor = &of->params->params[param];
        const size_t first = tensor->offset, last = first + tensor->elements;
        for (size_t at = first; at < last && has_kind(&of->kinds, chunks->kind, param);
             at += STATE_DIGEST_CHUNK) {
            while (of->partition->spans[span].end <= at)
                span++;
            chunks->list[chunks->n++] =
                (struct chunk){.param = param,
                               .index = (at - first) / STATE_DIGEST_CHUNK,
                               .begin = at,
                               .end = last - at < STATE_DIGEST_CHUNK ? last : at + STATE_DIGEST_CHUNK,
                               .span = span};
        }
    }
}

// Returns the largest number of chunks of a unit.
static size_t most_chunks(const struct params *params) {
    size_t most = 1;
    for (int unit = 0; unit < params->n_units; unit++) {
        size_t n = 0;
        for (int i = 0; i < params->units[unit].n_params; i++)
            n += (params->params[params->units[unit].first_param + i].elements + STATE_DIGEST_CHUNK - 1) /
                 STATE_DIGEST_CHUNK;
        most = n > most ? n : most;
    }
    return most;
}

// ---- hashing

static void digest_chunk(const struct chunks *chunks, int i, const float *values) {
    const struct chunk *chunk = &chunks->list[i];
    struct digest_stream stream;
    digest_begin(&stream, "state chunk");
    digest_add_number(&stream, chunks->kind);
    digest_add_number(&stream, (uint64_t)chunk->param);
    digest_add_number(&stream, chunk->index);
    digest_add(&stream, values, (chunk->end - chunk->begin) * sizeof *values);
    chunks->digests[i] = digest_end(&stream);
}

struct batch {
    const struct chunks *chunks;
    int first, n;
};

static void digest_part(const void *context, int part, int n_parts) {
    const struct batch *batch = context;
    const struct chunk *list = &batch->chunks->list[batch->first];
    const struct parallel_span mine = parallel_span_of((size_t)batch->n, 1, part, n_parts);
    for (size_t i = mine.begin; i < mine.end; i++)
        digest_chunk(batch->chunks, batch->first + (int)i,
                     batch->chunks->of->scratch + (list[i].begin - list[0].begin));
}

static bool is_cut(const struct chunks *chunks, const struct chunk *chunk) {
    return chunk->end > chunks->of->partition->spans[chunk->span].end;
}

static void read_values(struct chunks *chunks, size_t begin, size_t end, float *out) {
    const struct checkpoint_source *source = &chunks->of->source;
    if (chunks->failure == STATUS_OK)
        chunks->failure = source->read(source->context, chunks->kind, chunks->unit, begin, end, out);
}

// Gathers the parts of a chunk that several ranks own, and hashes it on the owner of its first element.
static enum status digest_cut(struct chunks *chunks, int i) {
    const struct state_digest *of = chunks->of;
    const struct chunk *chunk = &chunks->list[i];
    const struct partition_span *span = &of->partition->spans[chunk->span];
    const int owner = span->owner, rank = of->comm->rank;
    for (size_t at = chunk->begin, end; at < chunk->end; at = end, span++) {
        float *values = of->scratch + (at - chunk->begin);
        end = span->end < chunk->end ? span->end : chunk->end;
        if (span->owner == rank)
            read_values(chunks, at, end, values);
        if (span->owner != owner)
            TRY(comm_broadcast(of->comm, values, (end - at) * sizeof *values, span->owner));
    }
    if (owner == rank)
        digest_chunk(chunks, i, of->scratch);
    return STATUS_OK;
}

// Hashes whole chunks of one span from chunk `first` on, as many as fit into the scratch memory, on all
// threads.
//   next   [out] the first chunk that was not hashed
static void digest_whole(struct chunks *chunks, int first, int *next) {
    const struct state_digest *of = chunks->of;
    const struct chunk *list = chunks->list;
    const size_t begin = list[first].begin;
    int n = 1;
    while (first + n < chunks->n && list[first + n].span == list[first].span &&
           !is_cut(chunks, &list[first + n]) && list[first + n].end - begin <= CHECKPOINT_CHUNK)
        n++;
    *next = first + n;
    if (of->partition->spans[list[first].span].owner != of->comm->rank)
        return;
    read_values(chunks, begin, list[first + n - 1].end, of->scratch);
    parallel_run(n < parallel_threads() ? n : parallel_threads(), digest_part,
                 &(struct batch){chunks, first, n});
}

// Sends the digests of each rank's chunks to all ranks.
static enum status share_digests(const struct chunks *chunks) {
    const struct partition_span *spans = chunks->of->partition->spans;
    for (int i = 0, next; i < chunks->n && chunks->of->comm->world > 1; i = next) {
        const int owner = spans[chunks->list[i].span].owner;
        for (next = i; next < chunks->n && spans[chunks->list[next].span].owner == owner;)
            next++;
        TRY(comm_broadcast(chunks->of->comm, &chunks->digests[i],
                           (size_t)(next - i) * sizeof *chunks->digests, owner));
    }
    return STATUS_OK;
}

static void add_tensors(const struct chunks *chunks, struct digest_stream *root) {
    for (int i = 0, next; i < chunks->n; i = next) {
        const struct param *param = &chunks->of->params->params[chunks->list[i].param];
        struct digest_stream stream;
        digest_begin(&stream, "state tensor");
        digest_add_number(&stream, chunks->kind);
        digest_add_string(&stream, param->name);
        digest_add_number(&stream, param->elements);
        for (next = i; next < chunks->n && chunks->list[next].param == chunks->list[i].param; next++)
            digest_add(&stream, chunks->digests[next].bytes, DIGEST_BYTES);
        const struct digest tensor = digest_end(&stream);
        digest_add(root, tensor.bytes, DIGEST_BYTES);
    }
}

static enum status digest_unit(struct chunks *chunks, struct digest_stream *root) {
    list_chunks(chunks);
    for (int i = 0; i < chunks->n;)
        if (is_cut(chunks, &chunks->list[i])) {
            TRY(digest_cut(chunks, i));
            i++;
        } else {
            digest_whole(chunks, i, &i);
        }
    TRY(share_digests(chunks));
    add_tensors(chunks, root);
    return STATUS_OK;
}

enum status state_digest_compute(const struct state_digest *of, struct digest *root) {
    const size_t most = most_chunks(of->params);
    struct chunks chunks = {.of = of,
                            .list = allocate(most, sizeof *chunks.list),
                            .digests = allocate(most, sizeof *chunks.digests)};
    struct digest_stream stream;
    enum status status = STATUS_OK;
    digest_begin(&stream, "state root");
    for (int kind = 0; kind < N_CHECKPOINT_KINDS; kind++)
        for (int unit = 0; unit < of->params->n_units && status == STATUS_OK; unit++) {
            chunks.kind = (enum checkpoint_kind)kind;
            chunks.unit = unit;
            status = digest_unit(&chunks, &stream);
        }
    *root = digest_end(&stream);
    free(chunks.list);
    free(chunks.digests);
    return status == STATUS_OK ? comm_agree(of->comm, chunks.failure) : status;
}
