// SPDX-License-Identifier: Apache-2.0

/* The commands of the front end (NVIDIA's MPS guide, "Legacy MPS v2 Interface"; the manual page). */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"

enum { MAX_WORDS = 8 };

void answer_add(struct answer *answer, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(answer->text + answer->used, sizeof answer->text - answer->used, format, arguments);
    va_end(arguments);
    if (length > 0 && answer->used + (size_t)length < sizeof answer->text)
        answer->used += (size_t)length;
}

static struct server *server_of(const char *word, struct answer *answer)
{
    struct server *server = server_find((pid_t)atol(word));
    if (server == NULL)
        answer_add(answer, "Server %s does not exist\n", word);
    return server;
}

/* ---- servers ------------------------------------------------------------------------------------------------ */

/* Whether a server of somebody else has clients, which are not disturbed for a command. */
static bool others_compute(uid_t uid)
{
    for (unsigned i = 0; i < MAX_SERVERS; i++)
        if (servers[i].pid != 0 && servers[i].uid != uid && clients_of(servers[i].pid) > 0)
            return true;
    return false;
}

static void start_server(char **words, struct answer *answer)
{
    char *end = "x";
    errno = 0;
    unsigned long uid = words[1] != NULL ? strtoul(words[1], &end, 10) : 0;
    if (strcmp(words[0], "-uid") != 0 || *end != '\0' || errno != 0)
        answer_add(answer, "start_server takes -uid and the number of a user\n");
    else if (daemon_quits() || others_compute((uid_t)uid) || server_for((uid_t)uid, (gid_t)uid) == NULL)
        answer_add(answer, "A server for user %lu cannot be started\n", uid);
}

static void shutdown_server(char **words, struct answer *answer)
{
    struct server *server = server_of(words[0], answer);
    if (server != NULL)
        server_stop(server, words[1] != NULL && strcmp(words[1], "-f") == 0);
}

static void terminate_client(char **words, struct answer *answer)
{
    struct server *server = server_of(words[0], answer);
    bool found = false;
    for (unsigned i = 0; server != NULL && i < MAX_CLIENTS; i++) {
        if (clients[i].number == 0 || clients[i].server != server->pid || clients[i].pid != (pid_t)atol(words[1]))
            continue;
        message_send(server->socket, "TERMINATE %u", clients[i].number);
        found = true;
    }
    if (server != NULL && !found)
        answer_add(answer, "Client %s does not exist\n", words[1]);
}

/* ---- active thread percentage --------------------------------------------------------------------------------- */

/* 0: it is none. */
static double parse_percentage(const char *word, struct answer *answer)
{
    char *end;
    double value = strtod(word, &end);
    if (end != word && *end == '\0' && value > 0 && value <= 100)
        return value;
    answer_add(answer, "%s is not a percentage from 0 to 100\n", word);
    return 0;
}

static void set_percentage(struct settings *settings, const char *word, struct answer *answer)
{
    double value = parse_percentage(word, answer);
    if (value == 0)
        return;
    settings->percentage = value;
    answer_add(answer, "%.1f\n", value);
}

static void set_default_percentage(char **words, struct answer *answer)
{
    set_percentage(&defaults, words[0], answer);
}

static void get_default_percentage(char **words, struct answer *answer)
{
    (void)words;
    answer_add(answer, "%.1f\n", defaults.percentage);
}

static void set_server_percentage(char **words, struct answer *answer)
{
    struct server *server = server_of(words[0], answer);
    if (server == NULL)
        return;
    set_percentage(&server->settings, words[1], answer);
    message_send(server->socket, "PERCENTAGE %g", server->settings.percentage);
}

static void get_server_percentage(char **words, struct answer *answer)
{
    const struct server *server = server_of(words[0], answer);
    if (server != NULL)
        answer_add(answer, "%.1f\n", server->settings.percentage);
}

/* ---- limits of device memory ------------------------------------------------------------------------------------ */

static bool set_limit(struct settings *settings, const char *id, const char *value, struct answer *answer)
{
    uint64_t bytes = parse_memory(value);
    if (bytes == 0)
        answer_add(answer, "%s is not a memory size: it takes a whole number and G or M\n", value);
    else if (!device_exists(id))
        answer_add(answer, "Device %s does not exist\n", id);
    else
        return settings_set_limit(settings, id, bytes);
    return false;
}

/* As observed: whole gibibytes from one on, whole mebibytes below, both rounded down. */
static void show_limit(const struct settings *settings, const char *id, struct answer *answer)
{
    unsigned long long bytes = settings_limit(settings, id == NULL ? "0" : id);
    if (bytes >= 1ULL << 30)
        answer_add(answer, "%lluG\n", bytes >> 30);
    else
        answer_add(answer, "%lluM\n", bytes >> 20);
}

static void set_default_limit(char **words, struct answer *answer)
{
    set_limit(&defaults, words[0], words[1], answer);
}

static void get_default_limit(char **words, struct answer *answer)
{
    show_limit(&defaults, words[0], answer);
}

static void set_server_limit(char **words, struct answer *answer)
{
    struct server *server = server_of(words[0], answer);
    if (server != NULL && set_limit(&server->settings, words[1], words[2], answer))
        message_send(server->socket, "LIMITS %s=%lluK", words[1], (unsigned long long)(parse_memory(words[2]) >> 10));
}

static void get_server_limit(char **words, struct answer *answer)
{
    const struct server *server = server_of(words[0], answer);
    if (server != NULL)
        show_limit(&server->settings, words[1], answer);
}

/* ---- the commands ---------------------------------------------------------------------------------------------- */

static void help(char **words, struct answer *answer);

static const struct command {
    const char *name;
    unsigned least; /* words behind it */
    void (*run)(char **words, struct answer *answer);
    const char *usage;
} COMMANDS[] = {
    {"help", 0, help, ""},
    {"get_server_list", 0, list_servers, ""},
    {"get_server_status", 1, server_status, "PID"},
    {"start_server", 2, start_server, "-uid UID"},
    {"shutdown_server", 1, shutdown_server, "PID [-f]"},
    {"get_client_list", 1, list_clients, "PID"},
    {"get_device_client_list", 0, list_device_clients, "[PID]"},
    {"terminate_client", 2, terminate_client, "SERVER_PID CLIENT_PID"},
    {"ps", 0, list_processes, "[-p PID]"},
    {"set_default_active_thread_percentage", 1, set_default_percentage, "PERCENTAGE"},
    {"get_default_active_thread_percentage", 0, get_default_percentage, ""},
    {"set_active_thread_percentage", 2, set_server_percentage, "PID PERCENTAGE"},
    {"get_active_thread_percentage", 1, get_server_percentage, "PID"},
    {"set_default_device_pinned_mem_limit", 2, set_default_limit, "DEVICE VALUE"},
    {"get_default_device_pinned_mem_limit", 0, get_default_limit, "[DEVICE]"},
    {"set_device_pinned_mem_limit", 3, set_server_limit, "PID DEVICE VALUE"},
    {"get_device_pinned_mem_limit", 1, get_server_limit, "PID [DEVICE]"},
    {"quit", 0, NULL, "[-t TIMEOUT]"},
};

static void help(char **words, struct answer *answer)
{
    (void)words;
    for (size_t i = 0; i < sizeof COMMANDS / sizeof *COMMANDS; i++)
        answer_add(answer, "%s%s%s\n", COMMANDS[i].name, COMMANDS[i].usage[0] == '\0' ? "" : " ", COMMANDS[i].usage);
}

static bool quit(char **words, struct answer *answer)
{
    char *end = "";
    bool has_timeout = words[0] != NULL && strcmp(words[0], "-t") == 0 && words[1] != NULL;
    long seconds = has_timeout ? strtol(words[1], &end, 10) : -1;
    if ((words[0] != NULL && !has_timeout) || *end != '\0' || (has_timeout && seconds < 0)) {
        answer_add(answer, "quit takes nothing, or -t and a number of seconds\n");
        return true;
    }
    daemon_quit(seconds);
    return false;
}

bool command_run(const char *line, struct answer *answer)
{
    char text[MESSAGE_SIZE], *rest, *words[MAX_WORDS + 1] = {NULL};
    unsigned count = 0;
    snprintf(text, sizeof text, "%s", line);
    for (char *word = strtok_r(text, " \t\r", &rest); word != NULL && count < MAX_WORDS;
         word = strtok_r(NULL, " \t\r", &rest))
        words[count++] = word;
    for (size_t i = 0; count > 0 && i < sizeof COMMANDS / sizeof *COMMANDS; i++) {
        const struct command *command = &COMMANDS[i];
        if (strcmp(command->name, words[0]) != 0)
            continue;
        if (count - 1 < command->least)
            answer_add(answer, "Usage: %s %s\n", command->name, command->usage);
        else if (!command_is_allowed(command->name))
            answer_add(answer, "Failed to execute %s\n", command->name);
        else if (command->run == NULL)
            return quit(words + 1, answer);
        else
            command->run(words + 1, answer);
        return true;
    }
    if (count > 0)
        answer_add(answer, "Unknown command: %s\n", words[0]);
    return true;
}
