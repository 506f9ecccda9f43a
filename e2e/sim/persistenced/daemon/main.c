// SPDX-License-Identifier: Apache-2.0

/*
 * nvidia-persistenced: keeps GPUs open, so that the driver does not stop them when their last client leaves.
 *
 * As NVIDIA/nvidia-persistenced, apart from what the node's own init would see: it stays in the foreground, says when it
 * is ready, and has no system log, no PID file and no user of its own. NUMA memory is not simulated.
 */
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpus.h"

enum { MAX_CLIENTS = 16 };

static const char usage[] =
    "usage: nvidia-persistenced [--no-persistence-mode] [--cannot-reopen]\n"
    "Keeps GPUs open, and listens at " PERSISTENCED_SOCKET ", or where NVDRA_SIM_PERSISTENCED says.\n"
    "  --persistence-mode     open all GPUs at the start (default)\n"
    "  --no-persistence-mode  open none before it is asked to\n"
    "  --cannot-reopen        fail to open a GPU again that was closed once\n";

static volatile sig_atomic_t is_ending;

static void end(int number)
{
    (void)number;
    is_ending = 1;
}

/* ---- calls ---------------------------------------------------------------------------------------------------- */

/* What a call returns: words behind the acceptance. */
static size_t carry_out(const struct pd_call *call, uint32_t *result)
{
    if (call->procedure == 0)
        return 0;
    if (call->version == 2 && call->procedure == 2) { /* NUMA memory, which there is none of */
        result[0] = PD_SUCCESS;
        return 1;
    }
    if (call->version == 2 || call->procedure == PD_SET_MODE) {
        result[0] = gpus_set(&call->gpu, call->mode);
        return 1;
    }
    result[0] = gpus_get(&call->gpu, &result[1]);
    return result[0] == PD_SUCCESS ? 2 : 1;
}

static bool answer(int client)
{
    uint32_t words[PD_MAX_WORDS];
    size_t count;
    struct pd_call call;
    if (!pd_read(client, words, &count))
        return false;
    enum pd_accepted accepted = pd_parse(words, count, &call);
    uint32_t reply[10] = {call.xid, 1, 0, 0, 0, accepted};
    size_t length = 6;
    if (accepted == PD_ACCEPTED)
        length += carry_out(&call, reply + length);
    else if (accepted == PD_OTHER_VERSION) {
        reply[length++] = 1;
        reply[length++] = 2;
    }
    return pd_write(client, reply, length);
}

/* ---- the socket ----------------------------------------------------------------------------------------------- */

static int listen_at(const char *path)
{
    char directory[PATH_MAX];
    struct sockaddr_un address;
    snprintf(directory, sizeof directory, "%s", path);
    char *end = strrchr(directory, '/');
    if (end != NULL && end != directory) {
        *end = '\0';
        (void)mkdir(directory, 0755);
    }
    (void)unlink(path); /* that of one that was killed */
    if (pd_address(path, &address) < 0)
        return -1;
    int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    umask(0); /* everybody may ask, as the real one has it */
    bool ready = file >= 0 && bind(file, (struct sockaddr *)&address, sizeof address) == 0 && listen(file, 8) == 0;
    return ready ? file : -1;
}

static void serve(int socket)
{
    struct pollfd files[1 + MAX_CLIENTS] = {{.fd = socket, .events = POLLIN}};
    nfds_t count = 1;
    sigset_t during_poll;
    sigprocmask(SIG_SETMASK, NULL, &during_poll);
    sigdelset(&during_poll, SIGTERM);
    sigdelset(&during_poll, SIGINT);
    while (!is_ending) {
        files[0].events = count <= MAX_CLIENTS ? POLLIN : 0;
        if (ppoll(files, count, NULL, &during_poll) < 0)
            continue;
        for (nfds_t i = count - 1; i > 0; i--)
            if (files[i].revents != 0 && !answer(files[i].fd)) {
                close(files[i].fd);
                files[i] = files[--count];
            }
        int client = files[0].revents & POLLIN ? accept4(socket, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (client >= 0)
            files[count++] = (struct pollfd){.fd = client, .events = POLLIN};
    }
}

int main(int count, char **words)
{
    bool opens_all = true, cannot_reopen = false;
    for (int i = 1; i < count; i++) {
        if (strcmp(words[i], "--no-persistence-mode") == 0)
            opens_all = false;
        else if (strcmp(words[i], "--cannot-reopen") == 0)
            cannot_reopen = true;
        else if (strcmp(words[i], "--persistence-mode") != 0) {
            fputs(usage, stderr);
            return EXIT_FAILURE;
        }
    }
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, NULL); /* only while it waits: no call is cut off */
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = end}, NULL);
    sigaction(SIGINT, &(struct sigaction){.sa_handler = end}, NULL);
    if (!gpus_find(cannot_reopen)) {
        fputs("Unable to find any NVIDIA devices\n", stderr);
        return EXIT_FAILURE;
    }
    if (opens_all)
        gpus_open_all();
    const char *path = pd_socket();
    int socket = listen_at(path);
    if (socket < 0) {
        perror(path);
        return EXIT_FAILURE;
    }
    printf("Started (%d)\n", getpid());
    fflush(stdout);
    serve(socket);
    (void)unlink(path);
    return EXIT_SUCCESS;
}
