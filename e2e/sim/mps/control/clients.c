// SPDX-License-Identifier: Apache-2.0

/* The clients: those that wait for a server, and what is known of those that have one. */
#include <string.h>
#include <unistd.h>

#include "control.h"

struct client clients[MAX_CLIENTS];

static void forget(struct client *client)
{
    if (client->socket >= 0)
        close(client->socket);
    *client = (struct client){0};
}

static void refuse(struct client *client)
{
    message_send(client->socket, "FAILED %d", CUDA_MPS_CONNECTION_FAILED);
    forget(client);
}

void clients_refuse(void)
{
    for (struct client *client = clients; client < clients + MAX_CLIENTS; client++)
        if (client->number != 0 && client->server == 0)
            refuse(client);
}

void clients_of_ended_server(pid_t server, bool was_ready)
{
    for (struct client *client = clients; client < clients + MAX_CLIENTS; client++)
        if (client->number != 0 && client->server == server)
            forget(client);
    if (!was_ready)
        clients_refuse();
}

void client_left(pid_t server, unsigned number)
{
    for (struct client *client = clients; client < clients + MAX_CLIENTS; client++)
        if (client->number == number && client->server == server)
            forget(client);
}

void client_has_device(unsigned number, const char *uuid)
{
    for (struct client *client = clients; client < clients + MAX_CLIENTS; client++)
        if (client->number == number && client->device[0] == '\0')
            strcpy(client->device, uuid);
}

unsigned clients_of(pid_t server)
{
    unsigned count = 0;
    for (const struct client *client = clients; client < clients + MAX_CLIENTS; client++)
        count += client->number != 0 && client->server == server;
    return count;
}

unsigned clients_wait(struct pollfd polls[MAX_CLIENTS])
{
    unsigned count = 0;
    for (const struct client *client = clients; client < clients + MAX_CLIENTS; client++)
        if (client->number != 0 && client->socket >= 0)
            polls[count++] = (struct pollfd){.fd = client->socket, .events = POLLIN};
    return count;
}

/* One that waits says nothing: what comes is its end. */
void clients_react(const struct pollfd *polls, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        for (struct client *client = clients; polls[i].revents != 0 && client < clients + MAX_CLIENTS; client++)
            if (client->number != 0 && client->socket == polls[i].fd)
                forget(client);
}
