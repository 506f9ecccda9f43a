// SPDX-License-Identifier: Apache-2.0

/*
 * The parts of nvidia-imex and what they tell each other.
 *
 * One thread does everything, woken by sockets, signals and time; others only look names up or watch the state file.
 */
#pragma once

#include <poll.h>

#include "imex.h"
#include "layout.h" /* generated from nvdra_sim/state_file/layout.py: the state file */

_Static_assert(MAX_NODES == SIM_MAX_IMEX_NODES, "a place for each node in the state file");

enum { MAX_GUESTS = 2 * MAX_NODES, MAX_CLIENTS = 64, UNKNOWN = -1 };
enum { MAX_POLLS = MAX_NODES + MAX_GUESTS + MAX_CLIENTS + 8 };
enum { PATIENCE_MS = 3000 }; /* for an answer to a connection, a greeting, a keep-alive */

/* ---- log (log.c) -------------------------------------------------------------------------------------- */

enum level { CRITICAL = 1, ERROR, WARNING, INFO };

/* Where the configuration says; standard error until then. False, and said there: the file cannot be opened. */
bool log_open(const struct config *config);
void log_line(enum level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Writes the lines that were above the level of the configuration and have not been written yet. */
void log_dump(void);

/* ---- this daemon (self.c) ----------------------------------------------------------------------------- */

struct self {
    struct config config;
    struct nodes nodes;
    int number; /* place in the list, or UNKNOWN */
    struct address address; /* by which it was found there */
    enum state state;
    uint64_t instance; /* tells this process from those before it */
    bool has_no_gpu;   /* started with --nogpu */
    char version[32], hostname[NAME_SIZE];
    struct sim_imex faults; /* as of this turn of the loop */
};

extern struct self self;

/* What others are told: a fault can put another word in its place. */
enum state shown_state(void);

/* ---- the simulated node (host.c) ---------------------------------------------------------------------- */

/* Maps the state file of this node; false: there is no driver here. */
bool host_open(void);
bool host_driver_is_loaded(void);
/* Takes the place of the one IMEX instance of this host, for as long as the process lives; false: it is taken. */
bool host_claim(void);
bool host_has_capability(void);
/* The version of the driver, and the habits of its IMEX. */
const struct sim_description *host_description(void);
struct sim_imex host_faults(void);
/* Has a thread write to the descriptor after every change of the state file. */
bool host_watch(int wake);

/* ---- names (lookup.c) --------------------------------------------------------------------------------- */

struct answer {
    unsigned node, round;
    bool found;
    struct address address;
};

/* Answers are announced by a write to the descriptor. */
void lookup_announce(int wake);
/* Starts to look a name up; its answer will carry these numbers. */
void lookup_begin(unsigned node, unsigned round, const char *name, unsigned port);
bool lookup_take(struct answer *answer);

/* ---- whom to wait for after a crash (recovery.c) ------------------------------------------------------ */

/* Marks the nodes that an instance that did not end well was connected to; how many. */
unsigned recovery_read(const struct nodes *nodes, bool awaited[MAX_NODES]);
/* Notes them, if they are others than at the last time. */
void recovery_note(const struct nodes *nodes, const bool kept[MAX_NODES]);
void recovery_forget(void);

/* ---- what the loop waits for (waits.c) ---------------------------------------------------------------- */

struct waits {
    struct pollfd polls[MAX_POLLS];
    unsigned count;
};

/* Returns the place at which the outcome will be. */
unsigned waits_add(struct waits *waits, int file, bool also_to_send);
unsigned waits_add_stream(struct waits *waits, const struct stream *stream);

/* ---- our connections to the others (links.c) ---------------------------------------------------------- */

struct link {
    enum { RESTING, BLOCKED, LOOKING_UP, CONNECTING, GREETING, TALKING } phase;
    enum connection connection;
    struct stream stream;
    unsigned place; /* in waits */
    unsigned round; /* of the lookup whose answer counts */
    bool has_address;
    struct address address;
    unsigned failures;   /* in a row */
    unsigned attempts;
    int64_t due;         /* next attempt, end of patience, or next keep-alive */
    int64_t heard, lost; /* when */
    /* What the node said of itself, while connected. */
    enum state state;
    uint64_t instance;
};

void links_begin(int64_t now);
/* All our connections end and are made again, with names looked up anew. */
void links_renew(int64_t now);
/* No connection to the node any more, because of this mismatch with its instance. */
void links_block(unsigned node, enum connection mismatch, uint64_t instance);
/* Whether a node that greets us may not come in because of a mismatch before. Another instance may lift that. */
bool links_are_blocked(unsigned node, uint64_t instance, int64_t now);
void links_close(void);
void links_answer(const struct answer *answer, int64_t now);
void links_wait(struct waits *waits);
void links_react(const struct waits *waits, int64_t now);
/* Does what is due; when something will be. */
int64_t links_tick(int64_t now);
const struct link *link_to(unsigned node);
/* The letters of this node's row of the table. */
void links_row(char row[MAX_NODES + 1]);

/* ---- the others' connections to us (guests.c) --------------------------------------------------------- */

/* False, and logged: the address cannot be had. Nobody is let in before guests_listen. */
bool guests_bind(const struct address *address);
void guests_listen(void);
void guests_close(void);
void guests_wait(struct waits *waits);
void guests_react(const struct waits *waits, int64_t now);
/* Tells all of them how this node is. */
void guests_tell(void);

/* ---- the command service (commands.c) ----------------------------------------------------------------- */

bool commands_open(void);
void commands_close(void);
void commands_wait(struct waits *waits);
void commands_react(const struct waits *waits);
