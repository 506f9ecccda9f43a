// SPDX-License-Identifier: Apache-2.0

/* Lists of servers, clients and processes. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "control.h"

static bool is_client_of(const struct client *client, pid_t server)
{
    return client->number != 0 && client->server != 0 && (server == 0 || client->server == server);
}

void list_servers(char **words, struct answer *answer)
{
    (void)words;
    for (unsigned i = 0; i < MAX_SERVERS; i++)
        if (servers[i].pid != 0)
            answer_add(answer, "%d\n", servers[i].pid);
}

static const struct server *find(const char *word, struct answer *answer)
{
    const struct server *server = server_find((pid_t)atol(word));
    if (server == NULL)
        answer_add(answer, "Server %s does not exist\n", word);
    return server;
}

void server_status(char **words, struct answer *answer)
{
    const struct server *server = find(words[0], answer);
    if (server != NULL)
        answer_add(answer, "%s\n", server->is_ready ? "ACTIVE" : "INITIALIZING");
}

void list_clients(char **words, struct answer *answer)
{
    const struct server *server = find(words[0], answer);
    for (unsigned i = 0; server != NULL && i < MAX_CLIENTS; i++)
        if (is_client_of(&clients[i], server->pid))
            answer_add(answer, "%d\n", clients[i].pid);
}

void list_device_clients(char **words, struct answer *answer)
{
    const struct server *server = words[0] != NULL ? find(words[0], answer) : NULL;
    if (words[0] != NULL && server == NULL)
        return;
    for (unsigned i = 0; i < MAX_CLIENTS; i++)
        if (is_client_of(&clients[i], server != NULL ? server->pid : 0) && clients[i].device[0] != '\0')
            answer_add(answer, "%s %d\n", clients[i].device, clients[i].pid);
}

/* The first word of the command line of a process, and the number of its PID namespace. */
static void describe(pid_t pid, char command[TEXT_SIZE], char pid_namespace[TEXT_SIZE])
{
    char path[64], target[TEXT_SIZE] = "";
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    FILE *file = fopen(path, "re");
    size_t length = file != NULL ? fread(command, 1, TEXT_SIZE - 1, file) : 0;
    command[length] = '\0';
    if (file != NULL)
        fclose(file);
    snprintf(path, sizeof path, "/proc/%d/ns/pid", pid);
    ssize_t size = readlink(path, target, sizeof target - 1);
    const char *number = size > 0 ? strchr(target, '[') : NULL;
    snprintf(pid_namespace, TEXT_SIZE, "%llu", number != NULL ? strtoull(number + 1, NULL, 10) : 0);
}

void list_processes(char **words, struct answer *answer)
{
    pid_t wanted = words[0] != NULL && strcmp(words[0], "-p") == 0 && words[1] != NULL ? (pid_t)atol(words[1]) : 0;
    answer_add(answer, "%-9s %-5s %-9s %-22s %-16s %s\n", "PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND");
    for (unsigned i = 0; i < MAX_CLIENTS; i++) {
        const struct client *client = &clients[i];
        char command[TEXT_SIZE], pid_namespace[TEXT_SIZE];
        if (!is_client_of(client, 0) || (wanted != 0 && client->pid != wanted))
            continue;
        describe(client->pid, command, pid_namespace);
        answer_add(answer, "%-9d %-5d %-9d %-22.22s %-16s %s\n", client->pid, 0, client->server, client->device,
                   pid_namespace, command);
    }
}
