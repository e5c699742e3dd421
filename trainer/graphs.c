// CUDA graphs of a step: one launch by the host instead of hundreds.
#include "base/log.h"
#include "trainer/trainer_internal.h"

// Why a step of this run cannot be captured; NULL: it can.
static const char *obstacle(const struct trainer *trainer) {
    const struct config *config = trainer->config;
    if (trainer->comm->world > 1)
        return "several ranks communicate within a step";
    if (!optimizer_decides_on_device(&trainer->engine.optimizer))
        return "the host updates with offload_optimizer";
    if (config->top.offload_activations == CONFIG_OFFLOAD_CPU)
        return "offload_activations copies between steps";
    if (config->run.debug_sync)
        return "run.debug_sync waits for each operation";
    return NULL;
}

void trainer_graphs_init(struct trainer *trainer) {
    if (!trainer->config->top.cuda_graphs || !device_has_graphs(trainer->device))
        return;
    const char *why_not = obstacle(trainer);
    trainer->graphs.is_on = !why_not;
    if (why_not && trainer_leads(trainer))
        log_info("cuda_graphs: not used, as %s", why_not);
}

void trainer_graphs_free(struct trainer *trainer) {
    struct trainer_graphs *graphs = &trainer->graphs;
    for (int kind = 0; kind < N_MICRO_BATCH_KINDS; kind++)
        graph_free(&graphs->micro_batches[kind].graph);
    graph_free(&graphs->update.graph);
}

// What was captured has not run, so after a failure it is done as it is.
static enum status capture(struct trainer *trainer, struct trainer_graph *graph,
                           enum status (*work)(void *context), void *context) {
    struct stream *stream = &trainer->stream;
    TRY(graph_begin(stream));
    const enum status issued = work(context), captured = graph_end(stream, &graph->graph);
    if (issued == STATUS_OK && captured == STATUS_OK)
        return graph_launch(&graph->graph, stream);
    log_live_end();
    log_warning("cuda_graphs: not used, as a step cannot be captured: %s", status_message());
    status_clear();
    trainer_graphs_free(trainer);
    trainer->graphs.is_on = false;
    return work(context);
}

enum status trainer_graph_run(struct trainer *trainer, struct trainer_graph *graph,
                              enum status (*work)(void *context), void *context) {
    if (!trainer->graphs.is_on || trainer->profiler.profile)
        return work(context);
    if (graph->graph.work)
        return graph_launch(&graph->graph, &trainer->stream);
    if (graph->is_warm)
        return capture(trainer, graph, work, context);
    graph->is_warm = true;
    return work(context);
}
