// SPDX-License-Identifier: Apache-2.0

/* Which server takes a client: the one of its user, once it is ready. */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control.h"

static unsigned newest;

void client_accept(int listener)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    struct client *client = clients;
    log_line("Control", "Accepting connection...");
    int socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (socket < 0)
        return;
    while (client < clients + MAX_CLIENTS && client->number != 0)
        client++;
    if (client == clients + MAX_CLIENTS || getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        close(socket);
        return;
    }
    *client = (struct client){
        .number = ++newest, .pid = peer.pid, .uid = peer.uid, .gid = peer.gid, .socket = socket};
    const struct server *server = server_for(peer.uid, peer.gid);
    bool is_ready = server != NULL && server->is_ready;
    log_line("Control", "NEW CLIENT %d from user %u: %s", peer.pid, peer.uid,
             is_ready ? "Server already exists" : "Server is not ready, push client to pending list");
}

void clients_place(void)
{
    char order[TEXT_SIZE];
    for (struct client *client = clients; client < clients + MAX_CLIENTS; client++) {
        if (client->number == 0 || client->server != 0)
            continue;
        struct server *server = server_for(client->uid, client->gid);
        if (server == NULL || !server->is_ready)
            continue;
        snprintf(order, sizeof order, "CLIENT %u %d", client->number, client->pid);
        if (!message_send_file(server->socket, client->socket, order))
            continue; /* its end will be seen to */
        close(client->socket);
        client->socket = -1;
        client->server = server->pid;
    }
}
