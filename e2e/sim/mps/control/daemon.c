// SPDX-License-Identifier: Apache-2.0

/* The loop of the control daemon. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control.h"

enum { MAX_FRONT_ENDS = 16, MAX_POLLS = MAX_FRONT_ENDS + MAX_SERVERS + MAX_CLIENTS + 3 };
enum { SIGNALS, COMMANDS, CLIENTS, FIXED };

static int front_ends[MAX_FRONT_ENDS];
static unsigned front_end_count;
static int block_signals(void)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    return signalfd(-1, &signals, SFD_CLOEXEC);
}

static void react_to_signal(int signals)
{
    struct signalfd_siginfo info;
    if (read(signals, &info, sizeof info) == sizeof info)
        servers_reap();
}

/* ---- front ends -------------------------------------------------------------------------------------------- */

static void accept_front_end(int listener)
{
    int socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    log_line("Control", "Accepting connection...");
    if (socket >= 0 && front_end_count < MAX_FRONT_ENDS) {
        front_ends[front_end_count++] = socket;
        log_line("Control", "NEW UI");
    } else if (socket >= 0)
        close(socket);
}

static void forget_front_end(int socket)
{
    for (unsigned i = 0; i < front_end_count; i++)
        if (front_ends[i] == socket) {
            front_ends[i] = front_ends[--front_end_count];
            close(socket);
            log_line("Control", "UI closed");
            return;
        }
}

static void log_answer(const char *text)
{
    while (*text != '\0') {
        size_t length = strcspn(text, "\n");
        log_line("Control", "%.*s", (int)length, text);
        text += length + (text[length] == '\n');
    }
}

static void react_to_front_end(int socket)
{
    static struct answer answer;
    char command[MESSAGE_SIZE];
    if (message_receive(socket, command, NULL) == 0) {
        forget_front_end(socket);
        return;
    }
    log_line("Control", "Cmd:%s", command);
    answer.used = 0;
    answer.text[0] = '\0';
    if (!command_run(command, &answer))
        return; /* its end is the answer */
    log_answer(answer.text);
    message_send(socket, "%s", answer.text);
}

/* ---- loop -------------------------------------------------------------------------------------------------- */

static void turn(const struct files *files, int signals)
{
    static struct pollfd polls[MAX_POLLS];
    polls[SIGNALS] = (struct pollfd){.fd = signals, .events = POLLIN};
    polls[COMMANDS] = (struct pollfd){.fd = files->command_socket, .events = POLLIN};
    polls[CLIENTS] = (struct pollfd){.fd = daemon_quits() ? -1 : files->client_socket, .events = POLLIN};
    struct pollfd *fronts = polls + FIXED, *of_servers = fronts + front_end_count;
    unsigned front_count = front_end_count;
    for (unsigned i = 0; i < front_count; i++)
        fronts[i] = (struct pollfd){.fd = front_ends[i], .events = POLLIN};
    unsigned server_count = servers_wait(of_servers);
    struct pollfd *of_clients = of_servers + server_count;
    unsigned client_count = clients_wait(of_clients);
    int count = poll(polls, (nfds_t)(of_clients + client_count - polls), daemon_patience_ms());
    if (count == 0)
        daemon_end_patience();
    if (count <= 0)
        return;
    clients_react(of_clients, client_count);
    servers_react(of_servers, server_count);
    for (unsigned i = 0; i < front_count; i++)
        if (fronts[i].revents != 0)
            react_to_front_end(fronts[i].fd);
    if (polls[SIGNALS].revents != 0)
        react_to_signal(signals);
    if (polls[COMMANDS].revents != 0)
        accept_front_end(files->command_socket);
    if (polls[CLIENTS].revents != 0 && !daemon_quits())
        client_accept(files->client_socket);
    clients_place();
}

int daemon_run(const struct files *files, const struct options *options)
{
    int signals = block_signals();
    log_open(files->control_log);
    servers_open(files, options);
    log_line("Control", "Starting control daemon using socket %s/%s", files->directory, CLIENT_SOCKET);
    log_line("Control", "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=%s",
             files->directory);
    daemon_is_ready(files, options);
    while (!daemon_quits() || !servers_are_gone())
        turn(files, signals);
    log_line("Control", "Exit");
    files_close(files);
    return EXIT_SUCCESS;
}
