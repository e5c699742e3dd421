// ./train devices: prints the CPU and the GPU as this build sees them, or why one is unavailable.
#include <stdio.h>

#include "cli/commands.h"
#include "kernels/device.h"

static void print_device(const char *name) {
    struct device *device = NULL;
    if (device_open(name, 0, 0, &device) == STATUS_OK)
        printf("%-4s  %s\n", name, device->description);
    else
        printf("%-4s  none: %s\n", name, status_message());
    status_clear();
    device_close(device);
}

static enum status run_devices(int n_args, char **args) {
    (void)args;
    if (n_args > 0)
        return FAIL(STATUS_INVALID, "train devices takes no arguments");
    print_device("cpu");
    print_device("cuda");
    return STATUS_OK;
}

const struct command command_devices = {
    .name = "devices",
    .synopsis = "",
    .summary = "list the devices of this machine (device=cpu, device=cuda)",
    .examples = "See which GPUs this machine has, and their memory.\n./train devices\n",
    .run = run_devices,
};
