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
    "    -M, --multiuser-server  With -d or -f: one server for all users.\n"
    "    -h, --help              Show this text.\n";

static int run_daemon(const struct options *options)
{
    struct files files;
    if (options->is_daemon)
        daemon_detach();
    if (!files_open(&files)) {
        fflush(stdout);
        return EXIT_FAILURE;
    }
    settings_from_environment();
    return daemon_run(&files, options);
}

int main(int count, char **arguments)
{
    struct options options = {.is_daemon = false};
    for (int place = 1; place < count; place++) {
        const char *argument = arguments[place];
        if (strcmp(argument, "-d") == 0)
            options.is_daemon = true;
        else if (strcmp(argument, "-f") == 0)
            options.is_foreground = true;
        else if (strcmp(argument, "-M") == 0 || strcmp(argument, "--multiuser-server") == 0)
            options.is_multi_user = true;
        else {
            bool is_help = strcmp(argument, "-h") == 0 || strcmp(argument, "--help") == 0;
            fputs(USAGE, is_help ? stdout : stderr);
            return is_help ? EXIT_SUCCESS : EXIT_FAILURE;
        }
    }
    if (options.is_daemon && options.is_foreground) {
        fputs(USAGE, stderr);
        return EXIT_FAILURE;
    }
    return options.is_daemon || options.is_foreground ? run_daemon(&options) : front_end();
}
