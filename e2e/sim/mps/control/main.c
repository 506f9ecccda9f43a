// SPDX-License-Identifier: Apache-2.0

/* nvidia-cuda-mps-control of the simulated driver: lets processes share GPUs (nvml-simulator.md §17). */
#include <stdlib.h>
#include <string.h>

#include "control.h"

static const char USAGE[] =
    "nvidia-cuda-mps-control -- Control daemon of CUDA's Multi-Process Service, simulated.\n"
    "\n"
    "    (no option)             Take commands from standard input; `help` lists them.\n"
    "    -d                      Start the daemon in the background.\n"
    "    -f                      Start the daemon in the foreground.\n"
    "    -M, -multiuser-server   After -d or -f: one server for all users.\n"
    "    -h, --help              Show this text.\n";

static int run_daemon(const struct options *options)
{
    struct files files;
    if (options->is_daemon)
        daemon_detach();
    if (!files_open(&files, options)) {
        fflush(stdout);
        return EXIT_FAILURE;
    }
    settings_from_environment();
    return daemon_run(&files, options);
}

/* 535 and 550 do not know the option, 555 knows its long form alone. */
static bool is_multi_user(const char *word)
{
    if (strcmp(word, "-M") == 0)
        return !driver_is_before("580");
    return strcmp(word, "-multiuser-server") == 0 && !driver_is_before("555");
}

static int refuse_option(void)
{
    if (driver_is_before("555"))
        return front_end();
    fputs(USAGE, stdout);
    return EXIT_FAILURE;
}

/* As the real program does: what it does not know makes it the front end, and from 555 on that ends it. */
int main(int count, char **arguments)
{
    struct options options = {.is_daemon = false};
    const char *first = count > 1 ? arguments[1] : "", *second = count > 2 ? arguments[2] : "";
    if (strcmp(first, "-h") == 0 || strcmp(first, "--help") == 0) {
        fputs(USAGE, stdout);
        return EXIT_SUCCESS;
    }
    options.is_multi_user = count == 3 && is_multi_user(second);
    if (count > 2 && !options.is_multi_user)
        return refuse_option();
    options.is_daemon = strcmp(first, "-d") == 0;
    options.is_foreground = strcmp(first, "-f") == 0;
    return options.is_daemon || options.is_foreground ? run_daemon(&options) : front_end();
}
