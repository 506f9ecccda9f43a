// SPDX-License-Identifier: Apache-2.0

/* The parts of nvidia-cuda-mps-control. One thread answers commands, clients and servers. */
#pragma once

#include <poll.h>

#include "log.h"
#include "mps.h"

/* ---- what the command line says (main.c) ---------------------------------------------------------------- */

struct options {
    bool is_daemon, is_foreground, is_multi_user;
};

/* ---- the front end (front_end.c) ------------------------------------------------------------------------ */

/* Sends the lines of standard input to the daemon and shows its answers. The exit status. */
int front_end(void);

/* ---- the daemon's files and its loop (start.c, daemon.c) -------------------------------------------------- */

/* What the daemon has open for as long as it lives. */
struct files {
    const char *directory; /* of the pipes */
    int client_socket, command_socket, control_log, server_log;
};

/* Takes the directories; false: why is on standard output. */
bool files_open(struct files *files, const struct options *options);
/* Removes what the real daemon removes: sockets and lock stay. */
void files_close(const struct files *files);
/* Leaves the terminal; the caller's process ends with 0 once daemon_is_ready is called, or with 1. */
void daemon_detach(void);
void daemon_is_ready(const struct files *files, const struct options *options);
/* Runs until it is told to quit. The exit status. */
int daemon_run(const struct files *files, const struct options *options);

/* ---- the daemon's end (quitting.c) ------------------------------------------------------------------------ */

/* No client comes in any more, and the daemon ends with its last server. Those that run then are killed after
   `seconds`; -1: never. */
void daemon_quit(long seconds);
bool daemon_quits(void);
/* How long to wait for servers at most; -1: for ever. */
int daemon_patience_ms(void);
/* Kills the servers that still run, if it is time. */
void daemon_end_patience(void);

/* ---- defaults for servers that start later (settings.c) ---------------------------------------------------- */

enum { MAX_LIMITS = MAX_DEVICES, LIST_SIZE = MAX_LIMITS * (TEXT_SIZE + 32) };

struct settings {
    double percentage;
    unsigned limit_count;
    struct limit {
        char id[TEXT_SIZE]; /* as it was given: an index or a UUID */
        uint64_t bytes;
    } limits[MAX_LIMITS];
};

extern struct settings defaults;

/* What the environment of the daemon says. */
void settings_from_environment(void);
bool settings_set_limit(struct settings *settings, const char *id, uint64_t bytes);
/* 0: there is none for this word. */
uint64_t settings_limit(const struct settings *settings, const char *id);
/* The limits as a list that limits_take of the server understands. */
void settings_list(const struct settings *settings, char list[LIST_SIZE]);
/* ---- what the driver knows (driver.c) ------------------------------------------------------------------------ */

/* Whether it is a device that this daemon's servers would have. */
bool device_exists(const char *id);
/* Whether the driver is of a branch before this one, such as `555`; false without a driver. */
bool driver_is_before(const char *branch);
/* Whether a fault rule for `mps:<command>` lets the daemon do this; `start` is its own start. */
bool command_is_allowed(const char *command);

/* ---- servers (servers.c) ------------------------------------------------------------------------------------- */

enum { MAX_SERVERS = 16 };

struct server {
    pid_t pid; /* 0: a free place */
    uid_t uid;
    int socket;
    bool is_ready, is_leaving; /* leaving: ends as soon as it has no clients */
    struct settings settings;
};

extern struct server servers[MAX_SERVERS];

void servers_open(const struct files *files, const struct options *options);
/* The server with this process id; NULL: there is none. */
struct server *server_find(pid_t pid);
/* One for this user that takes clients, started if there is none; NULL: others have to end first. */
struct server *server_for(uid_t uid, gid_t gid);
/* Ends it: at once, or as soon as it has no clients. */
void server_stop(struct server *server, bool at_once);
void servers_stop(bool at_once);
bool servers_are_gone(void);
unsigned servers_wait(struct pollfd polls[MAX_SERVERS]);
void servers_react(const struct pollfd *polls, unsigned count);
/* Sees which processes have ended. */
void servers_reap(void);

/* ---- clients (clients.c) --------------------------------------------------------------------------------------- */

enum { MAX_CLIENTS = 512 };

struct client {
    unsigned number; /* 0: a free place */
    pid_t pid;       /* as this process sees it; 0: in another PID namespace */
    uid_t uid;
    gid_t gid;
    int socket;   /* -1: its server has it */
    pid_t server; /* 0: it waits for one */
    char device[TEXT_SIZE];
};

extern struct client clients[MAX_CLIENTS];

/* The server does not exist any more, or none could be started. */
void clients_of_ended_server(pid_t server, bool was_ready);
void clients_refuse(void);
void client_left(pid_t server, unsigned number);
void client_has_device(unsigned number, const char *uuid);
unsigned clients_of(pid_t server);
unsigned clients_wait(struct pollfd polls[MAX_CLIENTS]);
/* Forgets those that have given up waiting. */
void clients_react(const struct pollfd *polls, unsigned count);

/* ---- clients and servers (placement.c) --------------------------------------------------------------------- */

void client_accept(int listener);
/* Hands those that wait over to servers that are ready. */
void clients_place(void);

/* ---- commands (commands.c, status.c) --------------------------------------------------------------------------- */

struct answer {
    size_t used;
    char text[MESSAGE_SIZE];
};

void answer_add(struct answer *answer, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Does what a line says. False: there is no answer before the daemon ends. */
bool command_run(const char *line, struct answer *answer);
/* status.c: the lists of servers, clients and processes. */
void list_servers(char **words, struct answer *answer);
void server_status(char **words, struct answer *answer);
void list_clients(char **words, struct answer *answer);
void list_device_clients(char **words, struct answer *answer);
void list_processes(char **words, struct answer *answer);
