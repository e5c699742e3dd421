// ./train CONFIG.json [section.key=value ...] [--ranks N]: trains a model.
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/launch.h"
#include "cli/train.h"
#include "cli/version.h"
#include "trainer/trainer.h"

static const struct arg flags[] = {LAUNCH_FLAG};

// Appends the command that resumes this run: the one that started it, without checkpoint.resume.
static void add_command(struct text *line, int world, int n_args, char **args) {
    static const char resume[] = "checkpoint.resume=";
    const int launched = launch_n_ranks();
    if (world > 1 && !launched)
        text_add(line, "mpirun -n %d ", world);
    text_add(line, "./train");
    for (int i = 0; i < n_args; i++)
        if (strncmp(args[i], resume, sizeof resume - 1) != 0)
            text_add(line, " "), text_add_shell_word(line, args[i]);
    if (launched)
        text_add(line, " --ranks %d", launched);
}

struct comm_options train_comm_options(const struct config *config) {
    static const enum comm_path paths[] = {[CONFIG_COMM_BACKEND_AUTO] = COMM_PATH_AUTO,
                                           [CONFIG_COMM_BACKEND_NCCL] = COMM_PATH_NCCL,
                                           [CONFIG_COMM_BACKEND_MPI] = COMM_PATH_HOST};
    struct comm_options options = {.shared_memory = true, .build = version_build()};
    if (!config)
        return options;
    options.shared_memory = config->comm.shared_memory;
    options.for_gpu = config->top.device == CONFIG_DEVICE_CUDA ||
                      (config->top.device == CONFIG_DEVICE_AUTO && cuda_device_present());
    options.hang_timeout_s = config->run.hang_timeout_s;
    options.path = paths[config->comm.backend];
    return options;
}

// Trains as one rank: this process alone, or one of those that a launcher started.
static enum status train_rank(int n_args, char **args) {
    struct config config;
    struct text command = {0};
    struct comm *comm = NULL;
    if (n_args < 1)
        return FAIL(STATUS_INVALID, "no configuration named; usage: train %s", command_train.synopsis);
    enum status status = config_read(&config, args[0], n_args - 1, args + 1);
    const struct comm_options options = train_comm_options(status == STATUS_OK ? &config : NULL);
    const enum status opened = comm_open(&options, &comm);
    status = status == STATUS_OK ? opened : status;
    if (comm && comm->rank > 0)
        log_set_level(LOG_QUIET); // only rank 0 prints
    if (status == STATUS_OK)
        config_log_dropped(&config);
    if (status == STATUS_OK)
        status = config_check_backend(&config, options.for_gpu);
    if (comm)
        status = comm_agree(comm, status);
    add_command(&command, comm ? comm->world : 1, n_args, args);
    if (status == STATUS_OK && config_given(&config, "checkpoint.resume"))
        text_add(&command, " checkpoint.resume=auto");
    if (status == STATUS_OK)
        status = trainer_run(&config, command.data, comm);
    config_free(&config);
    text_free(&command);
    return comm_close(comm, status);
}

static enum status run_train(int n_args, char **args) {
    return launch_command("train", n_args, args, train_rank);
}

const struct command command_train = {
    .name = "train",
    .synopsis = "CONFIG.json [section.key=value ...] [--ranks N]",
    .summary = "train a model, or resume its run (the default command: the word train may be omitted)",
    .details =
        "CONFIG.json is one JSON object; ./train options lists every option with its default.\n"
        "Override values are JSON; a bare word is a string: optimizer.lr=3e-4 run.dir=runs/try2\n"
        "The last override of an option wins, so options can be appended to a saved command.\n"
        "Ctrl-C (or SIGTERM, SIGHUP, SIGUSR1) finishes the step, writes a checkpoint and exits with 128 + "
        "the\n"
        "signal's number; a second Ctrl-C stops at once. Run the same command again to resume.\n"
        "--ranks uses the mpirun of the MPI that the program was built with; its ranks share the cores.\n"
        "For ranks on several machines, use mpirun.",
    .examples = "Train GPT-2 124M on what data.train names, for 1000 steps.\n"
                "./train configs/gpt2-small.json data.train='data/train-*.bin' train.max_steps=1000\n"
                "Continue a run at a lower learning rate.\n"
                "./train runs/gpt2-small/config.json optimizer.lr=1e-4 checkpoint.resume_with=optimizer.lr\n"
                "Train on four ranks with gradients and optimizer states divided among them (ZeRO-2).\n"
                "./train configs/gpt2-small.json zero_optimization.stage=2 --ranks 4\n",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_train,
};
