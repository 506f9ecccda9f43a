// SPDX-License-Identifier: Apache-2.0

/* The others' connections to us: who may come in, and what they are told. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon.h"

enum { LONGEST_SILENCE_MS = 10000 };

struct guest {
    struct stream stream; /* socket -1: a free place */
    unsigned place;
    int node; /* UNKNOWN before the greeting */
    int64_t heard;
};

static struct guest guests[MAX_GUESTS];
static int listener = -1;
static unsigned listener_place;
static bool listening;

bool guests_bind(const struct address *address)
{
    for (unsigned i = 0; i < MAX_GUESTS; i++)
        guests[i].stream.socket = -1;
    listener = socket_bind(address);
    if (listener < 0)
        log_line(ERROR, "cannot bind port %ld for the other nodes: %s", self.config.server_port, strerror(errno));
    return listener >= 0;
}

void guests_listen(void)
{
    if (!listening && listen(listener, MAX_NODES) != 0)
        log_line(ERROR, "cannot listen for the other nodes: %s", strerror(errno));
    listening = true;
}

void guests_close(void)
{
    for (unsigned i = 0; i < MAX_GUESTS; i++)
        stream_close(&guests[i].stream);
}

/* ---- what they are told ------------------------------------------------------------------------------- */

static bool tell(struct guest *guest)
{
    return stream_send(&guest->stream, "STATE %s", STATE_NAMES[shown_state()]);
}

void guests_tell(void)
{
    for (unsigned i = 0; i < MAX_GUESTS; i++)
        if (guests[i].stream.socket >= 0 && guests[i].node != UNKNOWN && !tell(&guests[i]))
            stream_close(&guests[i].stream);
}

/* ---- what they say ------------------------------------------------------------------------------------ */

struct hello {
    int protocol, authenticates, from, to;
    unsigned count;
    uint64_t hash, instance;
    char version[32];
};

/* Why a greeting is not accepted; NULL: it is. A mismatch blocks the connection in both directions. */
static const char *objection(const struct hello *hello, int64_t now)
{
    unsigned from = (unsigned)hello->from;
    if (hello->protocol != 1 || strcmp(hello->version, self.version) != 0) {
        links_block(from, VERSION_MISMATCH, hello->instance);
        return "VERSION";
    }
    if (hello->authenticates != (int)self.config.authenticates)
        return "AUTH";
    if (hello->count != self.nodes.count || hello->hash != self.nodes.hash || hello->to != self.number) {
        links_block(from, NODE_MAP_MISMATCH, hello->instance);
        return "NODES";
    }
    if (links_are_blocked(from, hello->instance, now))
        return link_to(from)->connection == VERSION_MISMATCH ? "VERSION" : "NODES";
    return NULL;
}

/* False: the connection ends, with or without a word. */
static bool hear_hello(struct guest *guest, const char *line, int64_t now)
{
    struct hello hello;
    bool whole = sscanf(line, "HELLO %d %d %d %d %u %" SCNx64 " %" SCNx64 " %31s", &hello.protocol,
                        &hello.authenticates, &hello.from, &hello.to, &hello.count, &hello.hash, &hello.instance,
                        hello.version) == 8;
    if (!whole || hello.from < 0 || hello.from >= MAX_NODES || self.faults.refused[hello.from])
        return false;
    const char *why = objection(&hello, now);
    if (why != NULL) {
        log_line(WARNING, "refused a node that says it is node %d: %s", hello.from, why);
        stream_send(&guest->stream, "REFUSED %s %" PRIx64, why, self.instance);
        return false;
    }
    guest->node = hello.from;
    return stream_send(&guest->stream, "WELCOME %" PRIx64, self.instance) && tell(guest);
}

static bool hear(struct guest *guest, int64_t now)
{
    char line[LINE_SIZE];
    bool open = stream_receive(&guest->stream);
    while (stream_line(&guest->stream, line) != NULL) {
        guest->heard = now;
        if (guest->node == UNKNOWN ? !hear_hello(guest, line, now) : strcmp(line, "PING") != 0 || !tell(guest))
            return false;
    }
    return open;
}

/* ---- the loop ----------------------------------------------------------------------------------------- */

static void let_in(int64_t now)
{
    int socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0)
        return;
    for (unsigned i = 0; i < MAX_GUESTS; i++) {
        if (guests[i].stream.socket < 0) {
            guests[i].node = UNKNOWN;
            guests[i].heard = now;
            guests[i].place = UINT_MAX; /* not waited for yet */
            stream_open(&guests[i].stream, socket);
            return;
        }
    }
    close(socket);
}

void guests_wait(struct waits *waits)
{
    if (listening)
        listener_place = waits_add(waits, listener, false);
    for (unsigned i = 0; i < MAX_GUESTS; i++)
        if (guests[i].stream.socket >= 0)
            guests[i].place = waits_add_stream(waits, &guests[i].stream);
}

static bool may_stay(struct guest *guest, const struct waits *waits, int64_t now)
{
    if (guest->node != UNKNOWN && self.faults.refused[guest->node])
        return false;
    if (now - guest->heard >= (guest->node == UNKNOWN ? PATIENCE_MS : LONGEST_SILENCE_MS))
        return false;
    if (guest->place >= waits->count)
        return true;
    short events = waits->polls[guest->place].revents;
    if ((events & POLLOUT) != 0 && !stream_flush(&guest->stream))
        return false;
    return (events & ~POLLOUT) == 0 || hear(guest, now);
}

void guests_react(const struct waits *waits, int64_t now)
{
    for (unsigned i = 0; i < MAX_GUESTS; i++)
        if (guests[i].stream.socket >= 0 && !may_stay(&guests[i], waits, now))
            stream_close(&guests[i].stream);
    if (listening && listener_place < waits->count && waits->polls[listener_place].revents != 0)
        let_in(now);
}
