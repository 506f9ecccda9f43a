// SPDX-License-Identifier: Apache-2.0

/* Our connection to each of the others: found by name, greeted, kept alive, and made again when it is lost. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon.h"

enum { PROTOCOL = 1, KEEP_ALIVE_MS = 1000, FIRST_NAME_PAUSE_MS = 500 };

static struct link links[MAX_NODES];
static unsigned rounds; /* of lookups; numbers them */
static bool begun;

static const char *name_of(const struct link *link)
{
    return self.nodes.name[link - links];
}

static bool is_refused(const struct link *link)
{
    return self.faults.refused[link - links] != 0;
}

/* Until the next attempt: sources differ, so the node file says how long after the first failure, and at most. */
static int64_t pause_ms(const struct link *link)
{
    const struct sim_description *habits = host_description();
    int64_t pause = link->has_address ? habits->imex_retry_first_ms : FIRST_NAME_PAUSE_MS;
    int64_t longest = link->has_address ? habits->imex_retry_ceiling_ms : habits->imex_name_retry_ms;
    for (unsigned failures = link->failures; failures > 1 && pause < longest; failures--)
        pause *= 2;
    return pause < longest ? pause : longest;
}

static void rest(struct link *link, int64_t now)
{
    stream_close(&link->stream);
    link->phase = RESTING;
    link->failures++;
    link->due = now + pause_ms(link);
}

/* A connection that was in use is over. */
static void end(struct link *link, enum connection connection, const char *why, int64_t now)
{
    if (link->connection == CONNECTED) {
        log_line(connection == DISCONNECTED ? INFO : WARNING, "connection to node %d (%s) ended: %s",
                 (int)(link - links), name_of(link), why);
        link->connection = connection;
        link->lost = now;
        link->failures = 0;
    }
    rest(link, now);
}

static void fail(struct link *link, const char *why, int64_t now)
{
    if (link->phase != TALKING && link->failures == 0)
        log_line(INFO, "no connection to node %d (%s) yet: %s", (int)(link - links), name_of(link), why);
    end(link, RECOVERING, why, now);
}

/* ---- making a connection ------------------------------------------------------------------------------ */

static void connect_to(struct link *link, int64_t now)
{
    char ip[IP_SIZE];
    address_format(&link->address, ip);
    address_set_interface(&link->address, self.config.network_interface);
    int socket = socket_connect(&link->address);
    if (socket < 0) {
        fail(link, strerror(errno), now);
        return;
    }
    stream_open(&link->stream, socket);
    link->phase = CONNECTING;
    link->due = now + PATIENCE_MS;
}

static void look_up(struct link *link)
{
    link->attempts++;
    if (link->connection != CONNECTED && link->attempts > 1)
        log_line(INFO, "Attempting connection for target node %d - %s:%ld, attempt #%u", (int)(link - links),
                 name_of(link), self.config.server_port, link->attempts);
    link->round = ++rounds;
    lookup_begin((unsigned)(link - links), link->round, name_of(link), (unsigned)self.config.server_port);
}

/* A fault can keep the first address of every node for ever. */
static void attempt(struct link *link, int64_t now)
{
    if (self.faults.dns_stale && link->has_address) {
        connect_to(link, now);
        return;
    }
    link->phase = LOOKING_UP;
    link->due = INT64_MAX;
    look_up(link);
}

void links_answer(const struct answer *answer, int64_t now)
{
    struct link *link = &links[answer->node];
    if (!begun || answer->round != link->round)
        return;
    link->round = 0;
    link->has_address = answer->found;
    if (answer->found)
        link->address = answer->address;
    if (link->phase == LOOKING_UP && answer->found)
        connect_to(link, now);
    else if (link->phase == LOOKING_UP)
        fail(link, "the name does not resolve", now);
}

static void greet(struct link *link, int64_t now)
{
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(link->stream.socket, SOL_SOCKET, SO_ERROR, &error, &size);
    bool sent = error == 0 &&
        stream_send(&link->stream, "HELLO %d %d %d %d %u %" PRIx64 " %" PRIx64 " %s", PROTOCOL,
                    self.config.authenticates, self.number, (int)(link - links), self.nodes.count, self.nodes.hash,
                    self.instance, self.version);
    if (!sent) {
        fail(link, strerror(error == 0 ? EPIPE : error), now);
        return;
    }
    link->phase = GREETING;
    link->due = now + PATIENCE_MS;
}

/* ---- what the other side says ------------------------------------------------------------------------- */

static bool welcomed(struct link *link, const char *line, int64_t now)
{
    uint64_t instance;
    char ip[IP_SIZE];
    if (sscanf(line, "WELCOME %" SCNx64, &instance) != 1)
        return false;
    if (link->instance != 0 && link->instance != instance)
        log_line(INFO, "node %d (%s) is a new instance; what the former one held is given up", (int)(link - links),
                 name_of(link));
    address_format(&link->address, ip);
    log_line(INFO, "connected to node %d (%s) at %s", (int)(link - links), name_of(link), ip);
    link->instance = instance;
    link->state = UNAVAILABLE;
    link->phase = TALKING;
    link->connection = CONNECTED;
    link->failures = 0;
    link->heard = now;
    link->due = now + KEEP_ALIVE_MS;
    return true;
}

void links_block(unsigned node, enum connection mismatch, uint64_t instance)
{
    struct link *link = &links[node];
    if (!begun || node >= self.nodes.count || (int)node == self.number)
        return;
    if (link->connection != mismatch)
        log_line(ERROR, "%s with node %u (%s): communication is blocked",
                 mismatch == VERSION_MISMATCH ? "Version mismatch" : "Node configuration mapping mismatch", node,
                 name_of(link));
    stream_close(&link->stream);
    link->phase = BLOCKED;
    link->due = INT64_MAX;
    link->connection = mismatch;
    link->instance = instance;
}

bool links_are_blocked(unsigned node, uint64_t instance, int64_t now)
{
    struct link *link = &links[node];
    if (!begun || node >= self.nodes.count || link->phase != BLOCKED)
        return false;
    if (host_description()->imex_mismatch_is_permanent || link->instance == instance)
        return true;
    log_line(INFO, "node %u (%s) is a new instance: communication is no longer blocked", node, name_of(link));
    link->phase = RESTING;
    link->connection = NEVER_CONNECTED;
    link->failures = 0;
    link->due = now;
    return false;
}

static void hear_greeting(struct link *link, const char *line, int64_t now)
{
    if (welcomed(link, line, now))
        return;
    uint64_t instance;
    if (sscanf(line, "REFUSED VERSION %" SCNx64, &instance) == 1)
        links_block((unsigned)(link - links), VERSION_MISMATCH, instance);
    else if (sscanf(line, "REFUSED NODES %" SCNx64, &instance) == 1)
        links_block((unsigned)(link - links), NODE_MAP_MISMATCH, instance);
    else
        fail(link, strncmp(line, "REFUSED AUTH", strlen("REFUSED AUTH")) == 0 ? "only one of the two authenticates" : "no answer of an IMEX node",
             now);
}

static void hear_state(struct link *link, const char *line, int64_t now)
{
    char name[32];
    if (sscanf(line, "STATE %31s", name) != 1)
        return;
    link->heard = now;
    for (int state = 0; state < STATE_COUNT; state++)
        if (strcmp(STATE_NAMES[state], name) == 0)
            link->state = (enum state)state;
    if (link->state == SHUTTING_DOWN)
        end(link, DISCONNECTED, "it shuts down", now);
}

static void hear(struct link *link, int64_t now)
{
    char line[LINE_SIZE];
    bool open = stream_receive(&link->stream);
    while ((link->phase == GREETING || link->phase == TALKING) && stream_line(&link->stream, line) != NULL) {
        if (link->phase == GREETING)
            hear_greeting(link, line, now);
        else
            hear_state(link, line, now);
    }
    if (!open && link->phase != RESTING && link->phase != BLOCKED)
        fail(link, "closed by the other side", now);
}

/* ---- the loop ----------------------------------------------------------------------------------------- */

void links_begin(int64_t now)
{
    begun = true;
    for (unsigned node = 0; node < self.nodes.count; node++) {
        links[node] = (struct link){.stream.socket = -1, .due = now};
        links[node].connection = (int)node == self.number ? CONNECTED : NEVER_CONNECTED;
    }
}

void links_renew(int64_t now)
{
    for (unsigned node = 0; begun && node < self.nodes.count; node++) {
        struct link *link = &links[node];
        if ((int)node == self.number || link->phase == BLOCKED)
            continue;
        if (link->phase != RESTING)
            fail(link, "all connections start again", now);
        link->failures = link->attempts = 0;
        attempt(link, now);
    }
}

void links_close(void)
{
    for (unsigned node = 0; begun && node < MAX_NODES; node++)
        if (links[node].phase >= CONNECTING)
            stream_close(&links[node].stream);
    begun = false;
}

void links_wait(struct waits *waits)
{
    for (unsigned node = 0; begun && node < self.nodes.count; node++) {
        struct link *link = &links[node];
        if (link->phase == CONNECTING)
            link->place = waits_add(waits, link->stream.socket, true);
        else if (link->phase == GREETING || link->phase == TALKING)
            link->place = waits_add_stream(waits, &link->stream);
    }
}

void links_react(const struct waits *waits, int64_t now)
{
    for (unsigned node = 0; begun && node < self.nodes.count; node++) {
        struct link *link = &links[node];
        if (link->phase < CONNECTING || waits->polls[link->place].fd != link->stream.socket)
            continue;
        short events = waits->polls[link->place].revents;
        if (events == 0)
            continue;
        if (link->phase == CONNECTING)
            greet(link, now);
        else if ((events & POLLOUT) != 0 && !stream_flush(&link->stream))
            fail(link, "closed by the other side", now);
        else if ((events & ~POLLOUT) != 0)
            hear(link, now);
    }
}

static void tick(struct link *link, int64_t now)
{
    if (is_refused(link)) {
        if (link->phase != RESTING && link->phase != BLOCKED)
            fail(link, "a fault refuses this node", now);
    } else if (link->phase == TALKING && now - link->heard >= PATIENCE_MS) {
        fail(link, "it is silent", now);
    } else if (now >= link->due) {
        if (link->phase == RESTING)
            attempt(link, now);
        else if (link->phase != TALKING)
            fail(link, "it does not answer", now);
        else if (stream_send(&link->stream, "PING"))
            link->due = now + KEEP_ALIVE_MS;
        else
            fail(link, "closed by the other side", now);
    }
    if (link->connection == RECOVERING && self.config.grace_s >= 0 && now - link->lost >= self.config.grace_s * 1000) {
        log_line(WARNING, "node %d (%s) did not come back within %ld s; what it held is given up",
                 (int)(link - links), name_of(link), self.config.grace_s);
        link->connection = DISCONNECTED;
    }
}

int64_t links_tick(int64_t now)
{
    int64_t next = INT64_MAX;
    for (unsigned node = 0; begun && node < self.nodes.count; node++) {
        struct link *link = &links[node];
        if ((int)node == self.number)
            continue;
        tick(link, now);
        if (!is_refused(link) && link->due < next)
            next = link->due;
        if (link->connection == RECOVERING && self.config.grace_s >= 0 && link->lost + self.config.grace_s * 1000 < next)
            next = link->lost + self.config.grace_s * 1000;
    }
    return next;
}

const struct link *link_to(unsigned node)
{
    return &links[node];
}

void links_row(char row[MAX_NODES + 1])
{
    for (unsigned node = 0; node < self.nodes.count; node++)
        row[node] = CONNECTION_LETTERS[begun ? links[node].connection : NEVER_CONNECTED];
    row[self.nodes.count] = '\0';
}
