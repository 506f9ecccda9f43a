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

static bool own_address(struct address *address)
{
    const struct config *config = &self.config;
    if (config->command_path[0] == '\0')
        return address_parse(config->command_ip[0] == '\0' ? "127.0.0.1" : config->command_ip,
                             (unsigned)config->command_port, address);
    errno = EADDRINUSE;
    if (!address_of_path(config->command_path, address) || !clear_path(address, config->command_path))
        return false;
    socket_path = config->command_path;
    return true;
}

bool commands_open(void)
{
    struct address address;
    for (unsigned i = 0; i < MAX_CLIENTS; i++)
        clients[i].stream.socket = -1;
    if (!self.config.command_enabled)
        return true;
    errno = EADDRNOTAVAIL;
    if (own_address(&address))
        listener = socket_bind(&address);
    if (listener < 0 || listen(listener, MAX_CLIENTS) != 0) {
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

/* UP: everybody is connected to everybody; DEGRADED: this node is to somebody; DOWN: to nobody. */
static const char *domain_state(const char *own_row)
{
    bool all = true, any = false;
    for (unsigned node = 0; node < self.nodes.count; node++) {
        const char *row = (int)node == self.number ? own_row : link_to(node)->row;
        bool is_linked = own_row[node] == 'C';
        any |= is_linked && ((int)node != self.number || self.nodes.count == 1);
        all &= is_linked && strspn(row, "C") == self.nodes.count;
    }
    return all ? "UP" : any ? "DEGRADED" : "DOWN";
}

static void host_of(unsigned node, char ip[IP_SIZE])
{
    strcpy(ip, "-");
    if ((int)node == self.number)
        address_format(&self.address, ip);
    else if (link_to(node)->has_address)
        address_format(&link_to(node)->address, ip);
}

static bool answer_node(struct stream *stream, unsigned node, const char *own_row)
{
    const struct link *link = link_to(node);
    bool is_self = (int)node == self.number, is_known = is_self || link->connection == CONNECTED;
    char ip[IP_SIZE], invalid[MAX_NODES + 1];
    host_of(node, ip);
    memset(invalid, CONNECTION_LETTERS[INVALID], self.nodes.count);
    invalid[self.nodes.count] = '\0';
    const char *row = is_self ? own_row : is_known && link->row[0] != '\0' ? link->row : invalid;
    const char *version = is_self ? self.version : link->version, *host = is_self ? self.hostname : link->hostname;
    enum state state = is_self ? shown_state() : is_known ? link->state : UNAVAILABLE;
    return stream_send(stream, "NODE %u %s %s %s %s %s %s", node, self.nodes.name[node], ip, STATE_NAMES[state],
                       is_known ? version : "-", is_known ? host : "-", row);
}

static bool answer_nodes(struct stream *stream)
{
    char row[MAX_NODES + 1];
    links_row(row);
    bool sent = stream_send(stream, "DOMAIN %s %d %u", domain_state(row), self.number, self.nodes.count);
    for (unsigned node = 0; sent && node < self.nodes.count; node++)
        sent = answer_node(stream, node, row);
    return sent;
}

static bool answer(struct client *client)
{
    char line[LINE_SIZE];
    bool open = stream_receive(&client->stream);
    while (open && stream_line(&client->stream, line) != NULL) {
        if (strcmp(line, "QUERY") == 0)
            open = stream_send(&client->stream, "%s", STATE_NAMES[shown_state()]);
        else
            open = strcmp(line, "NODES") == 0 && answer_nodes(&client->stream);
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
