// SPDX-License-Identifier: Apache-2.0

/* The servers: one process for each user, which the daemon starts for its first client. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "control.h"

#define SERVER_PROGRAM "nvidia-cuda-mps-server"

enum { CONTROL = 3, LOG = 4, FIRST_OTHER = 10 }; /* descriptors of a server */

struct server servers[MAX_SERVERS];
static const struct files *files;
static const struct options *options;

void servers_open(const struct files *of_daemon, const struct options *given)
{
    files = of_daemon;
    options = given;
}

struct server *server_find(pid_t pid)
{
    for (unsigned i = 0; pid > 0 && i < MAX_SERVERS; i++)
        if (servers[i].pid == pid)
            return &servers[i];
    return NULL;
}

bool servers_are_gone(void)
{
    for (unsigned i = 0; i < MAX_SERVERS; i++)
        if (servers[i].pid != 0)
            return false;
    return true;
}

/* ---- start -------------------------------------------------------------------------------------------------- */

/* The program beside this one. */
static void find_program(char path[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - sizeof SERVER_PROGRAM - 1);
    path[length > 0 ? length : 0] = '\0';
    char *end = strrchr(path, '/');
    strcpy(end == NULL ? path : end + 1, SERVER_PROGRAM);
}

static _Noreturn void become_server(int socket, uid_t uid, gid_t gid)
{
    char path[PATH_MAX];
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    find_program(path);
    int control = fcntl(socket, F_DUPFD, FIRST_OTHER), log = fcntl(files->server_log, F_DUPFD, FIRST_OTHER);
    bool ready = dup2(control, CONTROL) == CONTROL && dup2(log, LOG) == LOG;
    close(control);
    close(log);
    if (uid != geteuid())
        ready = ready && setgroups(0, NULL) == 0 && setgid(gid) == 0 && setuid(uid) == 0;
    char *arguments[] = {SERVER_PROGRAM, NULL};
    if (ready)
        execv(path, arguments);
    _exit(EXIT_FAILURE);
}

static struct server *start(uid_t uid, gid_t gid)
{
    static char list[LIST_SIZE];
    int sockets[2];
    struct server *server = servers;
    while (server < servers + MAX_SERVERS && server->pid != 0)
        server++;
    if (server == servers + MAX_SERVERS || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0)
        return NULL;
    pid_t pid = fork();
    if (pid == 0) {
        log_line("Control", "Starting new server %d for user %u", getpid(), uid);
        become_server(sockets[1], uid, gid);
    }
    close(sockets[1]);
    if (pid < 0) {
        close(sockets[0]);
        return NULL;
    }
    *server = (struct server){.pid = pid, .uid = uid, .socket = sockets[0], .settings = defaults};
    settings_list(&server->settings, list);
    message_send(server->socket, "PERCENTAGE %g", server->settings.percentage);
    message_send(server->socket, "LIMITS %s", list);
    return server;
}

struct server *server_for(uid_t uid, gid_t gid)
{
    bool is_alone = true;
    if (options->is_multi_user)
        uid = geteuid();
    for (unsigned i = 0; i < MAX_SERVERS; i++) {
        if (servers[i].pid == 0)
            continue;
        if (servers[i].uid == uid && !servers[i].is_leaving)
            return &servers[i];
        server_stop(&servers[i], false);
        is_alone = false;
    }
    if (!is_alone)
        return NULL;
    struct server *started = start(uid, gid);
    if (started == NULL)
        clients_refuse();
    return started;
}

/* ---- end ---------------------------------------------------------------------------------------------------- */

void server_stop(struct server *server, bool at_once)
{
    server->is_leaving = true;
    if (at_once)
        kill(server->pid, SIGKILL);
    else if (server->is_ready && clients_of(server->pid) == 0)
        message_send(server->socket, "QUIT");
}

void servers_stop(bool at_once)
{
    for (unsigned i = 0; i < MAX_SERVERS; i++)
        if (servers[i].pid != 0)
            server_stop(&servers[i], at_once);
}

void servers_reap(void)
{
    int status;
    for (unsigned i = 0; i < MAX_SERVERS; i++) {
        struct server ended = servers[i];
        if (ended.pid == 0 || waitpid(ended.pid, &status, WNOHANG) != ended.pid)
            continue;
        log_line("Control", "Server %d exited with status %d", ended.pid,
                 WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
        if (ended.socket >= 0)
            close(ended.socket);
        servers[i] = (struct server){0};
        clients_of_ended_server(ended.pid, ended.is_ready);
    }
}

/* ---- messages ------------------------------------------------------------------------------------------------ */

static void hear(struct server *server, const char *message)
{
    unsigned number;
    char uuid[TEXT_SIZE];
    if (strcmp(message, "READY") == 0) {
        server->is_ready = true;
        log_line("Control", "NEW SERVER %d: Ready", server->pid);
    } else if (sscanf(message, "LEFT %u", &number) == 1)
        client_left(server->pid, number);
    else if (sscanf(message, "DEVICE %u %95s", &number, uuid) == 2)
        client_has_device(number, uuid);
    if (server->is_leaving)
        server_stop(server, false);
}

unsigned servers_wait(struct pollfd polls[MAX_SERVERS])
{
    unsigned count = 0;
    for (unsigned i = 0; i < MAX_SERVERS; i++)
        if (servers[i].pid != 0 && servers[i].socket >= 0)
            polls[count++] = (struct pollfd){.fd = servers[i].socket, .events = POLLIN};
    return count;
}

void servers_react(const struct pollfd *polls, unsigned count)
{
    char message[MESSAGE_SIZE];
    for (unsigned i = 0; i < count; i++)
        for (unsigned j = 0; polls[i].revents != 0 && j < MAX_SERVERS; j++) {
            if (servers[j].pid == 0 || servers[j].socket != polls[i].fd)
                continue;
            if (message_receive(servers[j].socket, message, NULL) > 0) {
                hear(&servers[j], message);
                continue;
            }
            close(servers[j].socket); /* it has ended, and will be seen to */
            servers[j].socket = -1;
        }
}
