// SPDX-License-Identifier: Apache-2.0

/* The configuration file: KEY=VALUE lines, `#` comments, every documented key (docs/reference/imex.md, "The run
   command"). */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "imex.h"

enum kind { TEXT, NUMBER, SWITCH, CHOICE };

struct key {
    const char *name;
    enum kind kind;
    size_t at, size;     /* in struct config; size of a text */
    long lowest, highest; /* of a number */
    const char *choices; /* of a choice: words with blanks between them; the value is the place of one */
};

#define AT(field) offsetof(struct config, field)
#define A_TEXT(name, field) {name, TEXT, AT(field), sizeof((struct config *)NULL)->field, 0, 0, NULL}
#define A_NUMBER(name, field, lowest, highest) {name, NUMBER, AT(field), 0, lowest, highest, NULL}
#define A_SWITCH(name, field) {name, SWITCH, AT(field), 0, 0, 0, NULL}
#define UNUSED(name) A_TEXT(name, unused)

static const struct key KEYS[] = {
    A_NUMBER("LOG_LEVEL", log_level, 0, 4),
    A_TEXT("LOG_FILE_NAME", log_file),
    UNUSED("STATS_FILE_NAME"),
    A_SWITCH("LOG_APPEND_TO_LOG", log_append),
    UNUSED("LOG_FILE_MAX_SIZE"),
    UNUSED("LOG_MAX_ROTATE_COUNT"),
    A_SWITCH("LOG_USE_SYSLOG", use_syslog),
    A_SWITCH("DAEMONIZE", daemonize),
    A_TEXT("BIND_INTERFACE_IP", bind_ip),
    A_NUMBER("SERVER_PORT", server_port, 1, 65535),
    A_TEXT("NETWORK_INTERFACE", network_interface),
    A_TEXT("IMEX_NODE_CONFIG_FILE", nodes_file),
    {"IMEX_WAIT_FOR_QUORUM", CHOICE, AT(quorum), 0, 0, 0, "NONE RECOVERY"},
    A_NUMBER("IMEX_NODE_DISCONNECTED_GRACE_TIME", grace_s, -1, INT_MAX),
    A_SWITCH("IMEX_CMD_ENABLED", command_enabled),
    A_TEXT("IMEX_CMD_BIND_INTERFACE_IP", command_ip),
    A_NUMBER("IMEX_CMD_PORT", command_port, 1, 65535),
    A_TEXT("IMEX_CMD_UNIX_DOMAIN_PATH", command_path),
    A_SWITCH("IMEX_ENABLE_AUTH_ENCRYPTION", authenticates),
    UNUSED("IMEX_AUTH_ENCRYPTION_MODE"),
    UNUSED("IMEX_AUTH_SOURCE"),
    UNUSED("IMEX_SERVER_KEY"),
    UNUSED("IMEX_SERVER_CERT"),
    UNUSED("IMEX_SERVER_CERT_AUTH"),
    UNUSED("IMEX_CLIENT_KEY"),
    UNUSED("IMEX_CLIENT_CERT"),
    UNUSED("IMEX_CLIENT_CERT_AUTH"),
    UNUSED("IMEX_SECURITY_TARGET_OVERRIDE"),
    UNUSED("IMEX_GSS_SERVICE_NAME"),
    UNUSED("IMEX_GSS_TIMEOUT_SEC"),
    UNUSED("IMEX_GSS_RETRY_INTERVAL_SEC"),
    UNUSED("IMEX_GSS_SEC_CONTEXT_LIFETIME_SEC"),
    UNUSED("IMEX_GSS_SHUTDOWN_ON_FAILURE"),
};

static const struct config DEFAULTS = {
    .log_level = 4,
    .log_file = "/var/log/nvidia-imex.log",
    .daemonize = true,
    .server_port = 50000,
    .nodes_file = "/etc/nvidia-imex/nodes_config.cfg",
    .quorum = QUORUM_RECOVERY,
    .command_port = 50005,
    .grace_s = -1,
};

static char *stripped(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1]))
        end--;
    *end = '\0';
    return text;
}

static const struct key *find(const char *name)
{
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++)
        if (strcmp(KEYS[i].name, name) == 0)
            return &KEYS[i];
    return NULL;
}

static bool set_number(const struct key *key, const char *value, void *field, char problem[LINE_SIZE])
{
    char *end;
    errno = 0;
    long number = strtol(value, &end, 10);
    if (*value == '\0' || *end != '\0' || errno != 0 || number < key->lowest || number > key->highest) {
        snprintf(problem, LINE_SIZE, "%s is %.200s; it must be a number from %ld to %ld", key->name,
                 *value == '\0' ? "empty" : value, key->lowest, key->highest);
        return false;
    }
    memcpy(field, &number, sizeof number);
    return true;
}

static bool set_switch(const struct key *key, const char *value, void *field, char problem[LINE_SIZE])
{
    bool on = strcmp(value, "1") == 0;
    if (!on && strcmp(value, "0") != 0) {
        snprintf(problem, LINE_SIZE, "%s is %.200s; it must be 0 or 1", key->name, *value == '\0' ? "empty" : value);
        return false;
    }
    memcpy(field, &on, sizeof on);
    return true;
}

static bool set_choice(const struct key *key, const char *value, void *field, char problem[LINE_SIZE])
{
    long place = 0;
    for (const char *word = key->choices; *word != '\0'; place++) {
        size_t length = strcspn(word, " ");
        if (strlen(value) == length && strncmp(word, value, length) == 0) {
            memcpy(field, &place, sizeof place);
            return true;
        }
        word += length + (word[length] == ' ');
    }
    snprintf(problem, LINE_SIZE, "%s is %.200s; it must be one of: %s", key->name, *value == '\0' ? "empty" : value,
             key->choices);
    return false;
}

static bool set(const struct key *key, const char *value, struct config *config, char problem[LINE_SIZE])
{
    void *field = (char *)config + key->at;
    switch (key->kind) {
    case NUMBER:
        return set_number(key, value, field, problem);
    case SWITCH:
        return set_switch(key, value, field, problem);
    case CHOICE:
        return set_choice(key, value, field, problem);
    case TEXT:
        break;
    }
    if (strlen(value) >= key->size) {
        snprintf(problem, LINE_SIZE, "%s is longer than %zu characters", key->name, key->size - 1);
        return false;
    }
    strcpy(field, value);
    return true;
}

/* One line; false: it is wrong, and has been complained about. */
static bool read_line(char *text, const char *file, unsigned line, struct config *config, complain_function *complain)
{
    char problem[LINE_SIZE], *name = stripped(text);
    if (*name == '\0' || *name == '#')
        return true;
    char *equals = strchr(name, '=');
    if (equals == NULL) {
        snprintf(problem, sizeof problem, "\"%.200s\" is not KEY=VALUE", name);
        complain(true, file, line, problem);
        return false;
    }
    *equals = '\0';
    name = stripped(name);
    const struct key *key = find(name);
    if (key == NULL) {
        snprintf(problem, sizeof problem, "nobody knows the key %.200s", name);
        complain(false, file, line, problem);
        return true;
    }
    bool right = set(key, stripped(equals + 1), config, problem);
    if (!right)
        complain(true, file, line, problem);
    return right;
}

FILE *open_or_complain(const char *path, complain_function *complain)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        complain(true, path, 0, strerror(errno));
    return file;
}

bool config_read(const char *path, struct config *config, complain_function *complain)
{
    *config = DEFAULTS;
    FILE *file = open_or_complain(path, complain);
    if (file == NULL)
        return false;
    char *text = NULL;
    size_t size = 0;
    bool right = true;
    for (unsigned line = 1; getline(&text, &size, file) >= 0; line++)
        right &= read_line(text, path, line, config, complain);
    if (ferror(file)) {
        complain(true, path, 0, strerror(errno));
        right = false;
    }
    free(text);
    fclose(file);
    return right;
}
