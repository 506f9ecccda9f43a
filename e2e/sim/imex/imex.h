/* What nvidia-imex and nvidia-imex-ctl share: configuration, words, sockets. Spec: nvml-simulator.md §16. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define DEFAULT_CONFIG "/etc/nvidia-imex/config.cfg"

enum { NAME_SIZE = 256, LINE_SIZE = 1024, IP_SIZE = 64 };

/* How a daemon is. NOT_READY exists in faults only: whoever looks for READY inside the word is wrong. */
#define STATES(X)          \
    X(UNAVAILABLE)         \
    X(INITIALIZING)        \
    X(WAITING_FOR_QUORUM)  \
    X(READY)               \
    X(NOT_READY)           \
    X(SHUTTING_DOWN)

#define STATE(name) name,
enum state { STATES(STATE) STATE_COUNT };
#undef STATE

/* How one node's connection to another is, and its letter in tables and messages. */
#define CONNECTIONS(X)                                                    \
    X(INVALID, 'I', "the node itself gave no answer")                     \
    X(NEVER_CONNECTED, 'N', "there has been no connection yet")           \
    X(CONNECTED, 'C', "in use")                                           \
    X(RECOVERING, 'R', "lost; what it carried is kept for its return")    \
    X(DISCONNECTED, 'D', "ended; what it carried has been given up")      \
    X(VERSION_MISMATCH, 'V', "refused: the nodes are of different versions") \
    X(NODE_MAP_MISMATCH, 'M', "refused: the nodes have different node lists")

#define CONNECTION(name, letter, meaning) name,
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

/* Fills in `config` from defaults and a file; false: the file cannot be read, or a line is wrong. */
bool config_read(const char *path, struct config *config, complain_function *complain);

/* ---- sockets (sockets.c) ------------------------------------------------------------------------------ */

struct address {
    struct sockaddr_storage socket;
    socklen_t size;
};

/* The address that a literal stands for; false: it is none. */
bool address_parse(const char *ip, unsigned port, struct address *address);
void address_format(const struct address *address, char ip[IP_SIZE]);
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
extern const char *const CONNECTION_MEANINGS[CONNECTION_COUNT];
extern const char CONNECTION_LETTERS[CONNECTION_COUNT + 1];
/* The connection of a letter; INVALID for any other character. */
enum connection connection_of(char letter);
