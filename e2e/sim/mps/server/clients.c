// SPDX-License-Identifier: Apache-2.0

/* The clients of a server: what they compute on, and how much memory they have. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server.h"

/* MPS guide, "Client-Server Connection Limits": 48 contexts per device, 60 with newer drivers. */
enum { OLD_MAX_CONTEXTS = 48, MAX_CONTEXTS = 60, CUDA_WITH_MORE_CONTEXTS = 13000 };

static struct client {
    unsigned number; /* 0: a free place */
    int pid, socket;
    bool is_terminated;
    bool has_context[MAX_DEVICES];
    uint64_t memory_bytes[MAX_DEVICES], limit_bytes[MAX_DEVICES];
} clients[MAX_CLIENTS];

void client_welcome(unsigned number, int pid, int socket)
{
    char text[MESSAGE_SIZE];
    unsigned place = 0;
    log_line("Server", "Received new client request");
    while (place < MAX_CLIENTS && clients[place].number != 0)
        place++;
    if (place == MAX_CLIENTS) {
        message_send(socket, "FAILED %d", CUDA_MPS_MAX_CLIENTS_REACHED);
        close(socket);
        return;
    }
    clients[place] = (struct client){.number = number, .pid = pid, .socket = socket};
    size_t used = (size_t)snprintf(text, sizeof text, "WELCOME %g", active_threads_percentage);
    for (unsigned i = 0; i < devices.count; i++) {
        clients[place].limit_bytes[i] = pinned_limits[i];
        used += (size_t)snprintf(text + used, sizeof text - used, " %s", devices.device[i].uuid);
    }
    message_send(socket, "%s", text);
    log_line("Server", "Client {PID: %d, Context ID: 0} connected", pid);
    log_line("Server", "Creating worker thread for client {PID: %d, Context ID: 0}", pid);
}

static void release(struct client *client)
{
    memset(client->has_context, 0, sizeof client->has_context);
    memset(client->memory_bytes, 0, sizeof client->memory_bytes);
}

void client_terminate(unsigned number)
{
    for (unsigned i = 0; i < MAX_CLIENTS; i++)
        if (clients[i].number == number) {
            clients[i].is_terminated = true;
            release(&clients[i]);
            log_line("Server", "Client {PID: %d, Context ID: 0} terminated", clients[i].pid);
        }
}

static unsigned count_contexts(unsigned device)
{
    unsigned count = 0;
    for (unsigned i = 0; i < MAX_CLIENTS; i++)
        count += clients[i].number != 0 && clients[i].has_context[device];
    return count;
}

static uint64_t free_memory(unsigned device)
{
    uint64_t used = 0;
    for (unsigned i = 0; i < MAX_CLIENTS; i++)
        used += clients[i].number != 0 ? clients[i].memory_bytes[device] : 0;
    return used < devices.device[device].memory_bytes ? devices.device[device].memory_bytes - used : 0;
}

/* What this client can still have. */
static uint64_t room_for(const struct client *client, unsigned device)
{
    uint64_t room = free_memory(device), limit = client->limit_bytes[device], used = client->memory_bytes[device];
    uint64_t allowed = limit > used ? limit - used : 0;
    return limit != 0 && allowed < room ? allowed : room;
}

static enum cuda_result open_context(struct client *client, unsigned device)
{
    unsigned most = devices_cuda_version() >= CUDA_WITH_MORE_CONTEXTS ? MAX_CONTEXTS : OLD_MAX_CONTEXTS;
    if (client->has_context[device])
        return CUDA_SUCCESS;
    if (count_contexts(device) >= most) {
        log_line("Server", "Client {PID: %d, Context ID: 0} refused: %u contexts are the most", client->pid, most);
        return CUDA_MPS_MAX_CLIENTS_REACHED;
    }
    client->has_context[device] = true;
    tell_device(client->number, device);
    log_line("Server", "Device %s (uuid %s) is associated", devices.device[device].name, devices.device[device].uuid);
    return CUDA_SUCCESS;
}

static enum cuda_result allocate(struct client *client, unsigned device, uint64_t bytes)
{
    if (!client->has_context[device])
        return CUDA_INVALID_CONTEXT;
    if (bytes > room_for(client, device))
        return CUDA_OUT_OF_MEMORY;
    client->memory_bytes[device] += bytes;
    return CUDA_SUCCESS;
}

static enum cuda_result give_back(struct client *client, unsigned device, uint64_t bytes)
{
    if (bytes > client->memory_bytes[device])
        return CUDA_INVALID_VALUE;
    client->memory_bytes[device] -= bytes;
    return CUDA_SUCCESS;
}

static enum cuda_result do_request(struct client *client, const char *verb, unsigned device, uint64_t bytes)
{
    if (strcmp(verb, "CONTEXT") == 0)
        return open_context(client, device);
    if (strcmp(verb, "ALLOCATE") == 0)
        return allocate(client, device, bytes);
    if (strcmp(verb, "FREE") == 0)
        return give_back(client, device, bytes);
    if (strcmp(verb, "RELEASE") == 0) {
        client->has_context[device] = false;
        client->memory_bytes[device] = 0;
        return CUDA_SUCCESS;
    }
    return strcmp(verb, "MEMORY") == 0 || strcmp(verb, "WAIT") == 0 ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}

/* Requests have the form `VERB UUID BYTES`, answers `RESULT FREE TOTAL`. */
static void answer(struct client *client, const char *request)
{
    char verb[TEXT_SIZE], uuid[TEXT_SIZE];
    unsigned long long bytes;
    bool is_one = sscanf(request, "%95s %95s %llu", verb, uuid, &bytes) == 3;
    int place = is_one ? device_find(&devices, uuid) : -1;
    if (client->is_terminated || place < 0) {
        message_send(client->socket, "%d 0 0",
                     client->is_terminated ? CUDA_MPS_CLIENT_TERMINATED : CUDA_INVALID_DEVICE);
        return;
    }
    enum cuda_result result = do_request(client, verb, (unsigned)place, bytes);
    uint64_t total = client->limit_bytes[place] != 0 ? client->limit_bytes[place] : devices.device[place].memory_bytes;
    message_send(client->socket, "%d %llu %llu", result, (unsigned long long)room_for(client, (unsigned)place),
                 (unsigned long long)total);
}

unsigned clients_wait(struct pollfd polls[MAX_CLIENTS])
{
    unsigned count = 0;
    for (unsigned i = 0; i < MAX_CLIENTS; i++)
        if (clients[i].number != 0)
            polls[count++] = (struct pollfd){.fd = clients[i].socket, .events = POLLIN};
    return count;
}

static struct client *client_with(int socket)
{
    for (unsigned i = 0; i < MAX_CLIENTS; i++)
        if (clients[i].number != 0 && clients[i].socket == socket)
            return &clients[i];
    return NULL;
}

void clients_react(const struct pollfd *polls, unsigned count)
{
    char request[MESSAGE_SIZE];
    for (unsigned i = 0; i < count; i++) {
        struct client *client = polls[i].revents != 0 ? client_with(polls[i].fd) : NULL;
        if (client == NULL)
            continue;
        if (message_receive(client->socket, request, NULL) > 0) {
            answer(client, request);
            continue;
        }
        log_line("Server", "Receive command failed, assuming client exit");
        log_line("Server", "Client {PID: %d, Context ID: 0} disconnected", client->pid);
        unsigned number = client->number;
        close(client->socket);
        *client = (struct client){0};
        tell_that_left(number);
    }
}
