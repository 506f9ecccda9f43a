// SPDX-License-Identifier: Apache-2.0

/* What the daemon asks the driver. Another process asks, because the daemon itself keeps neither it nor a GPU open. */
#include <ctype.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "control.h"
#include "library.h"

static bool is_listed(const char *id)
{
    static struct cuda_devices devices;
    if (!devices_open(library_open()))
        return false;
    devices_list(&devices);
    if (!isdigit((unsigned char)id[0]))
        return device_find(&devices, id) >= 0;
    char *end;
    unsigned long index = strtoul(id, &end, 10);
    return *end == '\0' && index < devices.count;
}

/* The daemon itself needs no driver. */
static bool is_allowed(const char *command)
{
    return !devices_open(library_open()) || devices_allow(command);
}

static bool is_before(const char *branch)
{
    char version[TEXT_SIZE];
    if (!devices_open(library_open()))
        return false;
    devices_driver_version(version);
    return atol(version) < atol(branch);
}

static bool ask(bool (*question)(const char *), const char *argument)
{
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(question(argument) ? EXIT_SUCCESS : EXIT_FAILURE);
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

bool device_exists(const char *id)
{
    return ask(is_listed, id);
}

bool driver_is_before(const char *branch)
{
    return ask(is_before, branch);
}

bool command_is_allowed(const char *command)
{
    return ask(is_allowed, command);
}
