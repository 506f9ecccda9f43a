// SPDX-License-Identifier: Apache-2.0

/* nvidia-imex-ctl of the simulated driver: asks a daemon how it is, and how its domain is (nvml-simulator.md §16.2). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl.h"
#include "layout.h"

enum { EXIT_WRONG_USAGE = 2, EXIT_NO_ANSWER = 255 };

static const char USAGE[] =
    "NVIDIA IMEX control of a simulated driver\n"
    "\n"
    "nvidia-imex-ctl [OPTION]... <-q|-N>\n"
    "\n"
    "    -q              Show the state of the daemon, in one word.\n"
    "    -N              Show the nodes of its domain and their connections.\n"
    "    -H              The same, with the nodes' own host names.\n"
    "    -j              Answer in JSON.\n"
    "    -c FILE         The daemon's configuration; default: " DEFAULT_CONFIG "\n"
    "    --u=SOCKET      The daemon's Unix socket, instead of what the configuration says.\n"
    "    -v              Show the version.\n"
    "    -h              Show this text.\n";

struct options {
    const char *config, *socket;
    bool query, nodes, hostnames, json;
};

static bool options_read(char **arguments, struct options *options)
{
    for (int place = 1; arguments[place] != NULL; place++) {
        const char *argument = arguments[place];
        if (strcmp(argument, "-q") == 0)
            options->query = true;
        else if (strcmp(argument, "-N") == 0)
            options->nodes = true;
        else if (strcmp(argument, "-H") == 0)
            options->nodes = options->hostnames = true;
        else if (strcmp(argument, "-j") == 0)
            options->json = true;
        else if (strcmp(argument, "-c") == 0 && arguments[place + 1] != NULL)
            options->config = arguments[++place];
        else if (strncmp(argument, "--u=", 4) == 0 && argument[4] != '\0')
            options->socket = argument + 4;
        else {
            fprintf(stderr, "nvidia-imex-ctl: \"%s\" is no option, or lacks its value\n", argument);
            return false;
        }
    }
    if (options->query != options->nodes)
        return true;
    fprintf(stderr, "nvidia-imex-ctl: give either -q or -N\n");
    return false;
}

static void complain(bool fatal, const char *file, unsigned line, const char *problem)
{
    if (fatal)
        fprintf(stderr, "nvidia-imex-ctl: %s:%u: %s\n", file, line, problem);
}

/* ---- where to ask ------------------------------------------------------------------------------------- */

static bool address_from_config(const struct config *config, const char *path, struct address *address)
{
    if (!config->command_enabled) {
        fprintf(stderr, "nvidia-imex-ctl: %s does not enable the command service\n", path);
        return false;
    }
    const char *ip = config->command_ip[0] == '\0' ? "127.0.0.1" : config->command_ip;
    bool is_one = config->command_path[0] != '\0' ? address_of_path(config->command_path, address)
                                                  : address_parse(ip, (unsigned)config->command_port, address);
    if (!is_one)
        fprintf(stderr, "nvidia-imex-ctl: %s has no address of a command service\n", path);
    return is_one;
}

static bool address_from_option(const char *socket, struct address *address)
{
    bool is_one = address_of_path(socket, address);
    if (!is_one)
        fprintf(stderr, "nvidia-imex-ctl: %s is too long for a socket\n", socket);
    return is_one;
}

/* What the node file says of this program; a program without a state file has the first of each choice. */
static void take_habits(struct service *service)
{
    void *state = driver_state();
    service->patience_ms = -1;
    if (state == NULL)
        return;
    const struct sim_description *habits = driver_description(state);
    service->patience_ms = habits->imex_ctl_patience_ms == 0 ? -1 : (int64_t)habits->imex_ctl_patience_ms;
    service->word_when_missing = habits->imex_ctl_says_unavailable;
}

/* ---- answers ------------------------------------------------------------------------------------------ */

static int show_state(const struct service *service, bool json)
{
    char state[LINE_SIZE];
    if (!service_ask(service, &service->own, "QUERY", state)) {
        if (!service->word_when_missing) {
            fprintf(stderr, "nvidia-imex-ctl: no IMEX daemon answers\n");
            return EXIT_NO_ANSWER;
        }
        strcpy(state, STATE_NAMES[UNAVAILABLE]);
    }
    if (json)
        printf("{\"status\":\"%s\"}\n", state);
    else
        printf("%s\n", state);
    return EXIT_SUCCESS;
}

static int show_domain(const struct service *service, const struct config *config, const struct options *options)
{
    static struct domain domain;
    if (!nodes_read(config->nodes_file, &domain.nodes, complain))
        return EXIT_NO_ANSWER;
    domain_learn(&domain, service);
    if (options->json)
        show_json(&domain);
    else
        show_table(&domain, options->hostnames);
    return EXIT_SUCCESS;
}

static int run(const struct options *options)
{
    static struct config config;
    struct service service = {.word_when_missing = false};
    bool needs_config = options->socket == NULL || options->nodes;
    if (needs_config && !config_read(options->config, &config, complain))
        return EXIT_NO_ANSWER;
    bool known = options->socket != NULL ? address_from_option(options->socket, &service.own)
                                         : address_from_config(&config, options->config, &service.own);
    if (!known)
        return EXIT_NO_ANSWER;
    take_habits(&service);
    service.port = (unsigned)config.command_port;
    service.interface = config.network_interface;
    return options->query ? show_state(&service, options->json) : show_domain(&service, &config, options);
}

int main(int count, char **arguments)
{
    struct options options = {.config = DEFAULT_CONFIG};
    for (int place = 1; place < count; place++) {
        if (strcmp(arguments[place], "-h") == 0 || strcmp(arguments[place], "--help") == 0) {
            fputs(USAGE, stdout);
            return EXIT_SUCCESS;
        }
        if (strcmp(arguments[place], "-v") == 0 || strcmp(arguments[place], "--version") == 0) {
            printf("nvidia-imex-ctl of a simulated driver\n");
            return EXIT_SUCCESS;
        }
    }
    if (!options_read(arguments, &options)) {
        fputs(USAGE, stderr);
        return EXIT_WRONG_USAGE;
    }
    return run(&options);
}
