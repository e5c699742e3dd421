// The launcher is configured by environment variables, which the launchers of other MPIs ignore. So one
// command line suits all: LAUNCHER -n N ./train ...
//
// Launchers answer Ctrl-C and SIGTERM differently, and Open MPI's kills the ranks within two seconds. All
// pass SIGUSR1 on to the ranks. The launcher therefore gets a process group of its own, out of reach of the
// terminal, and every signal of this process is sent to it as SIGUSR1.
#include "cli/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "zero/comm/comm.h"

enum { NO_LAUNCHER = 127 }; // what a shell returns for a command that it does not find

static const char ranks_variable[] = "ZERO_LAUNCHED_RANKS";

int launch_exit_code = 0;
int64_t launch_ranks = 0;

int launch_n_ranks(void) {
    const char *n = getenv(ranks_variable);
    return n ? atoi(n) : 0;
}

// Open MPI 4 reads OMPI_*, Open MPI 5 reads PRTE_*. Values that the user has set are kept.
static void set_environment(const char *n) {
    static const char *const variables[][2] = {
        {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
        {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
        {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
        {"OMPI_MCA_hwloc_base_binding_policy", "none"},
        {"PRTE_ALLOW_RUN_AS_ROOT", "1"},
        {"PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
        {"PRTE_MCA_rmaps_default_mapping_policy", ":OVERSUBSCRIBE"},
        {"PRTE_MCA_hwloc_default_binding_policy", "none"},
    };
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        setenv(variables[i][0], variables[i][1], 0);
    setenv(ranks_variable, n, 1);
}

// In the child process: becomes the launcher with these words, the first of which is for its name.
static _Noreturn void become_launcher(char **words, const sigset_t *mask) {
    static const char *const launchers[] = {ZERO_MPI_LAUNCHER, "mpirun", "mpiexec"};
    setpgid(0, 0);
    // If this process is killed, the ranks save and end.
    prctl(PR_SET_PDEATHSIG, SIGUSR1);
    // A background process that reads from the terminal would be suspended.
    const int nothing = open("/dev/null", O_RDONLY);
    if (nothing >= 0)
        dup2(nothing, STDIN_FILENO);
    signal(SIGPIPE, SIG_DFL); // main ignores both
    signal(SIGXFSZ, SIG_DFL);
    sigprocmask(SIG_SETMASK, mask, NULL);
    set_environment(words[2]);
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        words[0] = (char *)(uintptr_t)launchers[i];
        execvp(words[0], words);
    }
    _exit(NO_LAUNCHER);
}

// Waits for the launcher, and passes the signals on. Returns its exit code.
static int wait_for(pid_t launcher, const sigset_t *signals) {
    int first = 0, state;
    while (waitpid(launcher, &state, WNOHANG) != launcher) {
        const int number = sigwaitinfo(signals, NULL);
        if (number < 0 || number == SIGCHLD)
            continue;
        first = first ? first : number;
        kill(launcher, SIGUSR1);
    }
    const int code = WIFSIGNALED(state) ? 128 + WTERMSIG(state) : WEXITSTATUS(state);
    return first && code == 128 + SIGUSR1 ? 128 + first : code;
}

static enum status run_launcher(char **words, int *exit_code) {
    const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD};
    sigset_t signals, before;
    sigemptyset(&signals);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaddset(&signals, numbers[i]);
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_BLOCK, &signals, &before);
    const pid_t launcher = fork();
    if (launcher == 0)
        become_launcher(words, &before);
    if (launcher > 0)
        *exit_code = wait_for(launcher, &signals);
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (launcher < 0)
        return FAIL(STATUS_FAILED, "cannot start a process for the ranks: %s", strerror(errno));
    if (*exit_code == NO_LAUNCHER)
        return FAIL(
            STATUS_UNSUPPORTED,
            "--ranks %s needs the launcher of the MPI that the program was built with: \"%s\" cannot be "
            "run, and PATH has neither mpirun nor mpiexec. Install it (on Debian: openmpi-bin), add its "
            "folder to PATH, or leave out --ranks",
            words[2], ZERO_MPI_LAUNCHER);
    return STATUS_OK;
}

//   words   (n_words) the command's name and its arguments
static enum status launch(int64_t n, int n_words, char **command, int *exit_code) {
    char number[16], program[4096], option[] = "-n";
    const char *sign = comm_launcher_sign();
    if (sign)
        return FAIL(
            STATUS_INVALID,
            "--ranks starts ranks itself, but a launcher has started this process (%s is set). Leave out "
            "--ranks, or start ./train without the launcher and unset %s",
            sign, sign);
    if (n == 1)
        return STATUS_OK;
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0)
        return FAIL(STATUS_FAILED, "cannot read /proc/self/exe, the program to start: %s", strerror(errno));
    program[length] = 0;
    snprintf(number, sizeof number, "%d", (int)n);
    char **words = allocate((size_t)n_words + 5, sizeof *words);
    words[1] = option, words[2] = number, words[3] = program;
    memcpy(words + 4, command, (size_t)n_words * sizeof *command);
    const enum status status = run_launcher(words, exit_code);
    free(words);
    return status;
}

// Only --ranks is taken out here. Other words that begin with "--" are the command's, or flags of other
// trainers, for which config_read knows the options.
enum status launch_command(const char *name, int n_args, char **args,
                           enum status (*run)(int n_args, char **args)) {
    static const struct arg flags[] = {LAUNCH_FLAG};
    const size_t length = strlen(flags->name);
    int n = 0, n_flags = 0, n_left, code = -1;
    char **words = allocate(2 * (size_t)n_args + 1, sizeof *words), **given = words + n_args + 1;
    words[0] = (char *)(uintptr_t)name;
    for (int i = 0; i < n_args; i++) {
        const bool is_flag = strncmp(args[i], flags->name, length) == 0 && strchr("=", args[i][length]);
        if (!is_flag)
            words[++n] = args[i];
        else if ((given[n_flags++] = args[i])[length] == 0 && i + 1 < n_args)
            given[n_flags++] = args[++i];
    }
    enum status status = args_parse(name, flags, 1, n_flags, given, NULL, 0, &n_left);
    if (status == STATUS_OK && launch_ranks > 0 &&
        n > 0) // without arguments, one process says what is missing
        status = launch(launch_ranks, n + 1, words, &code);
    if (status == STATUS_OK && code < 0)
        status = run(n, words + 1);
    else if (status == STATUS_OK)
        launch_exit_code = code;
    free(words);
    return status;
}
