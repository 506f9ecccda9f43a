// SPDX-License-Identifier: Apache-2.0

/* The command service: what nvidia-imex-ctl asks, over TCP or a Unix socket. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon.h"

struct client {
    struct stream stream; /* socket -1: a free place */
    unsigned place;
};

static struct client clients[MAX_CLIENTS];
static int listener = -1;
static unsigned listener_place;
static const char *socket_path; /* of a Unix socket, to be removed at the end */

/* Removes the socket that a killed daemon has left; false: one that somebody listens on is in the way. */
static bool clear_path(const struct address *address, const char *path)
{
    int file = socket_connect(address);
    if (file >= 0) {
        close(file);
        return false;
    }
    return errno != ECONNREFUSED || unlink(path) == 0;
}

/* Without an address in the configuration the service is open to the other nodes, which ask it for its row. */
static bool bind_everywhere(unsigned port)
{
    struct address address;
    listener = address_parse("::", port, &address) ? socket_bind(&address) : -1;
    if (listener < 0 && errno != EADDRINUSE && address_parse("0.0.0.0", port, &address))
        listener = socket_bind(&address); /* a host without IPv6 */
    return listener >= 0;
}

static bool bind_service(void)
{
    const struct config *config = &self.config;
    struct address address;
    if (config->command_path[0] == '\0' && config->command_ip[0] == '\0')
        return bind_everywhere((unsigned)config->command_port);
    if (config->command_path[0] == '\0') {
        errno = EADDRNOTAVAIL;
        if (address_parse(config->command_ip, (unsigned)config->command_port, &address))
            listener = socket_bind(&address);
        return listener >= 0;
    }
    errno = EADDRINUSE;
    if (!address_of_path(config->command_path, &address) || !clear_path(&address, config->command_path))
        return false;
    socket_path = config->command_path;
    listener = socket_bind(&address);
    return listener >= 0;
}

bool commands_open(void)
{
    for (unsigned i = 0; i < MAX_CLIENTS; i++)
        clients[i].stream.socket = -1;
    if (!self.config.command_enabled)
        return true;
    if (!bind_service() || listen(listener, MAX_CLIENTS) != 0) {
        log_line(ERROR, "cannot open the command service: %s", strerror(errno));
        socket_path = NULL;
        return false;
    }
    return true;
}

void commands_close(void)
{
    for (unsigned i = 0; i < MAX_CLIENTS; i++)
        stream_close(&clients[i].stream);
    if (socket_path != NULL)
        unlink(socket_path);
}

/* ---- answers ------------------------------------------------------------------------------------------ */

/* How this node is and how it sees the others; who asks about a domain asks every node of it. */
static bool answer_row(struct stream *stream)
{
    char row[MAX_NODES + 1];
    links_row(row);
    return stream_send(stream, "ROW %d %s %s %s %s", self.number, STATE_NAMES[shown_state()], self.version, self.hostname,
                       row);
}

static bool answer(struct client *client)
{
    char line[LINE_SIZE];
    bool open = stream_receive(&client->stream);
    while (open && stream_line(&client->stream, line) != NULL) {
        if (strcmp(line, "QUERY") == 0)
            open = stream_send(&client->stream, "%s", STATE_NAMES[shown_state()]);
        else if (strcmp(line, "ROW") != 0)
            open = false;
        else if (!self.faults.nodes_hang)
            open = answer_row(&client->stream);
    }
    return open;
}

/* ---- the loop ----------------------------------------------------------------------------------------- */

static void let_in(void)
{
    int socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0)
        return;
    for (unsigned i = 0; i < MAX_CLIENTS; i++) {
        if (clients[i].stream.socket < 0) {
            stream_open(&clients[i].stream, socket);
            clients[i].place = UINT_MAX; /* not waited for yet */
            return;
        }
    }
    close(socket);
}

void commands_wait(struct waits *waits)
{
    if (listener >= 0)
        listener_place = waits_add(waits, listener, false);
    for (unsigned i = 0; i < MAX_CLIENTS; i++)
        if (clients[i].stream.socket >= 0)
            clients[i].place = waits_add_stream(waits, &clients[i].stream);
}

void commands_react(const struct waits *waits)
{
    for (unsigned i = 0; i < MAX_CLIENTS; i++) {
        struct client *client = &clients[i];
        if (client->stream.socket < 0 || client->place >= waits->count)
            continue;
        short events = waits->polls[client->place].revents;
        bool open = (events & POLLOUT) == 0 || stream_flush(&client->stream);
        if (!open || ((events & ~POLLOUT) != 0 && !answer(client)))
            stream_close(&client->stream);
    }
    if (listener >= 0 && waits->polls[listener_place].revents != 0)
        let_in();
}
