// SPDX-License-Identifier: Apache-2.0

/* What nvidia-imex and nvidia-imex-ctl share: configuration, words, sockets. Spec: nvml-simulator.md §16. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>

#define DEFAULT_CONFIG "/etc/nvidia-imex/config.cfg"

enum { NAME_SIZE = 256, LINE_SIZE = 1024, IP_SIZE = 64, MAX_NODES = 256 };

/* How a daemon is, in the order of the numbers that DCGM has for these words. */
#define STATES(X)            \
    X(INITIALIZING)          \
    X(STARTING_AUTH_SERVER)  \
    X(WAITING_FOR_PEERS)     \
    X(WAITING_FOR_RECOVERY)  \
    X(INIT_GPU)              \
    X(READY)                 \
    X(SHUTTING_DOWN)         \
    X(UNAVAILABLE)

#define STATE(name) name,
enum state { STATES(STATE) STATE_COUNT };
#undef STATE

/* How one node's connection to another is: its letter in messages, its mark in tables, and what the legend says. */
#define CONNECTIONS(X)                                                                   \
    X(INVALID, 'I', "I", "Invalid - the node gave no answer")                            \
    X(NEVER_CONNECTED, 'N', "N", "Never Connected")                                      \
    X(RECOVERING, 'R', "R", "Recovering - lost; what it carried is kept for its return") \
    X(DISCONNECTED, 'D', "D", "Disconnected - lost; what it carried has been given up")  \
    X(AUTHENTICATING, 'A', "A", "Authenticating")                                        \
    X(VERSION_MISMATCH, 'V', "!V!", "Version mismatch, no communication")                \
    X(NODE_MAP_MISMATCH, 'M', "!M!", "Node map mismatch, no communication")              \
    X(CONNECTED, 'C', "C", "Connected")

#define CONNECTION(name, letter, mark, meaning) name,
enum connection { CONNECTIONS(CONNECTION) CONNECTION_COUNT };
#undef CONNECTION

/* ---- configuration (config.c) ------------------------------------------------------------------------- */

enum quorum { QUORUM_NONE, QUORUM_RECOVERY };

struct config {
    long log_level; /* 0 nothing, 1 critical, 2 errors, 3 warnings, 4 everything */
    char log_file[PATH_MAX];
    bool log_append, use_syslog, daemonize;
    char bind_ip[IP_SIZE], network_interface[32];
    long server_port;
    char nodes_file[PATH_MAX];
    long quorum;
    bool command_enabled;
    char command_ip[IP_SIZE];
    long command_port;
    char command_path[PATH_MAX];
    long grace_s; /* until a lost connection is given up; -1: never */
    bool authenticates;
    char unused[PATH_MAX]; /* values of keys that change nothing here */
};

/* Told of each line that is wrong; `fatal` is false for a key that nobody knows. */
typedef void complain_function(bool fatal, const char *file, unsigned line, const char *problem);

/* Opens a file to read; NULL, and complained of: it cannot be. */
FILE *open_or_complain(const char *path, complain_function *complain);

/* Fills in `config` from defaults and a file; false: the file cannot be read, or a line is wrong. */
bool config_read(const char *path, struct config *config, complain_function *complain);

/* ---- the node list (nodes.c) -------------------------------------------------------------------------- */

struct nodes {
    unsigned count;
    uint64_t hash; /* nodes with another one have another list */
    char name[MAX_NODES][NAME_SIZE];
};

/* Reads the file: a name or address per line. False, and complained of: there is none, or nobody is in it. */
bool nodes_read(const char *path, struct nodes *nodes, complain_function *complain);

/* ---- the simulated driver (driver.c) ------------------------------------------------------------------ */

struct sim_description;

/* The mapped state file of this node; NULL: there is no driver here. */
void *driver_state(void);
const struct sim_description *driver_description(const void *state);

/* ---- sockets (sockets.c) ------------------------------------------------------------------------------ */

struct address {
    struct sockaddr_storage socket;
    socklen_t size;
};

/* The address that a literal stands for; false: it is none. */
bool address_parse(const char *ip, unsigned port, struct address *address);
void address_format(const struct address *address, char ip[IP_SIZE]);
/* Gives a link-local address without an interface this one; an empty name gives none. */
void address_set_interface(struct address *address, const char *interface);
/* Gives an address of IP version 6 that stands for one of version 4 as the latter. */
void address_unmap(struct address *address);
void address_set_port(struct address *address, unsigned port);
bool address_same_host(const struct address *one, const struct address *other);
bool address_of_path(const char *path, struct address *address);
/* Starts to connect without waiting; -1 with errno. */
int socket_connect(const struct address *address);
/* A bound socket that does not listen yet; -1 with errno. */
int socket_bind(const struct address *address);

int64_t now_ms(void);

/* ---- lines over a socket (stream.c) ------------------------------------------------------------------- */

struct stream {
    int socket; /* -1: closed */
    char in[LINE_SIZE];
    size_t in_used;
    char *out;
    size_t out_used;
};

void stream_open(struct stream *stream, int socket);
void stream_close(struct stream *stream);
/* Takes in what has arrived; false: the other side has closed, or sends what is no line. */
bool stream_receive(struct stream *stream);
/* The next whole line, without its end, valid until the next call; NULL: none yet. */
const char *stream_line(struct stream *stream, char line[LINE_SIZE]);
/* Sends a line, or keeps what the socket does not take; false: the connection is broken. */
bool stream_send(struct stream *stream, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool stream_flush(struct stream *stream);

/* ---- words (words.c) ---------------------------------------------------------------------------------- */

extern const char *const STATE_NAMES[STATE_COUNT];
extern const char *const CONNECTION_NAMES[CONNECTION_COUNT];
extern const char *const CONNECTION_MARKS[CONNECTION_COUNT];
extern const char *const CONNECTION_MEANINGS[CONNECTION_COUNT];
extern const char CONNECTION_LETTERS[CONNECTION_COUNT + 1];
/* The connection of a letter; INVALID for any other character. */
enum connection connection_of(char letter);
