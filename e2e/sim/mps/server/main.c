// SPDX-License-Identifier: Apache-2.0

/*
 * nvidia-cuda-mps-server of the simulated driver: has the one context on the GPUs that the clients of MPS share
 * (nvml-simulator.md §17). The control daemon starts it, and it ends with its daemon.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "library.h"
#include "server.h"

static int fail(const char *why)
{
    log_line("Server", "%s", why);
    log_line("Other", "Server process exiting");
    return EXIT_FAILURE;
}

/* False: no CUDA program could compute either. */
static bool take_gpus(void)
{
    devices_list(&devices);
    for (unsigned i = 0; i < devices.count; i++) {
        log_line("Server", "Creating server context on device %u (%s)", i, devices.device[i].name);
        if (device_open_context(&devices.device[i]) != CUDA_SUCCESS) {
            log_line("Server", "Failed to create a context on device %u: the device is busy or unavailable", i);
            return false;
        }
    }
    return devices.count > 0;
}

static void set_percentage(const char *text)
{
    active_threads_percentage = strtod(text, NULL);
    log_line("Server", "Active Threads Percentage set to %.1f", active_threads_percentage);
}

/* False: the server ends. */
static bool obey(const char *order, int file)
{
    unsigned number;
    int pid;
    if (file >= 0 && sscanf(order, "CLIENT %u %d", &number, &pid) == 2)
        client_welcome(number, pid, file);
    else if (file >= 0)
        close(file);
    else if (strncmp(order, "PERCENTAGE ", 11) == 0)
        set_percentage(order + 11);
    else if (strncmp(order, "LIMITS ", 7) == 0)
        limits_take(order + 7);
    else if (sscanf(order, "TERMINATE %u", &number) == 1)
        client_terminate(number);
    else if (strcmp(order, "QUIT") == 0)
        return false;
    return true;
}

static int serve(void)
{
    char order[MESSAGE_SIZE];
    struct pollfd polls[MAX_CLIENTS + 1];
    for (;;) {
        int file;
        polls[0] = (struct pollfd){.fd = CONTROL, .events = POLLIN};
        unsigned count = clients_wait(polls + 1);
        if (poll(polls, count + 1, -1) < 0)
            continue;
        clients_react(polls + 1, count);
        if (polls[0].revents == 0)
            continue;
        if (message_receive(CONTROL, order, &file) == 0 || !obey(order, file)) {
            log_line("Server", "Server process exiting");
            return EXIT_SUCCESS;
        }
    }
}

int main(int count, char **arguments)
{
    (void)count;
    char version[TEXT_SIZE];
    struct stat info;
    if (fstat(CONTROL, &info) != 0 || !S_ISSOCK(info.st_mode)) {
        fprintf(stderr, "%s: started by nvidia-cuda-mps-control only\n", arguments[0]);
        return EXIT_FAILURE;
    }
    fcntl(CONTROL, F_SETFD, FD_CLOEXEC);
    fcntl(LOG, F_SETFD, FD_CLOEXEC);
    log_open(LOG);
    log_line("Other", "Startup");
    log_line("Other", "Connecting to control daemon on socket: %s/%s",
             mps_directory("CUDA_MPS_PIPE_DIRECTORY", DEFAULT_PIPE_DIRECTORY), CLIENT_SOCKET);
    log_line("Other", "Initializing server process");
    if (!devices_open(library_open()))
        return fail("Failed to initialize CUDA: no driver");
    if (!devices_allow("server") || !take_gpus())
        return fail("Failed to initialize CUDA: no CUDA-capable device is available");
    devices_driver_version(version);
    log_line("Server", "CUDA MPS Server for Linux/Unix. Binary version: %d", devices_cuda_version());
    log_line("Server", "Display Driver version: %d", atoi(version));
    message_send(CONTROL, "READY");
    log_line("Server", "Server has started");
    return serve();
}
