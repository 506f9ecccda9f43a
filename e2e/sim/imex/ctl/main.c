/* nvidia-imex-ctl of the simulated driver: asks a daemon how it is, and how its domain is (nvml-simulator.md §16.2). */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ctl.h"

enum { EXIT_WRONG_USAGE = 2, PATIENCE_MS = 10000 };

static const char USAGE[] =
    "NVIDIA IMEX control of a simulated driver\n"
    "\n"
    "nvidia-imex-ctl [OPTION]... <-q|-N>\n"
    "\n"
    "    -q              Show the state of the daemon, in one word.\n"
    "    -N              Show the nodes of its domain and their connections.\n"
    "    -H              The same, with the nodes' own host names and addresses.\n"
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

/* ---- asking ------------------------------------------------------------------------------------------- */

static bool address_from_config(const char *path, struct address *address)
{
    static struct config config;
    if (!config_read(path, &config, complain))
        return false;
    if (!config.command_enabled) {
        fprintf(stderr, "nvidia-imex-ctl: %s does not enable the command service\n", path);
        return false;
    }
    const char *ip = config.command_ip[0] == '\0' ? "127.0.0.1" : config.command_ip;
    bool is_one = config.command_path[0] != '\0' ? address_of_path(config.command_path, address)
                                                 : address_parse(ip, (unsigned)config.command_port, address);
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

static bool wait_for(const struct stream *stream, short events, int64_t end)
{
    struct pollfd wait = {.fd = stream->socket, .events = events};
    int64_t left = end - now_ms();
    return left > 0 && poll(&wait, 1, (int)left) == 1;
}

/* Connects and sends one word. */
static bool ask(struct stream *stream, const struct address *address, const char *question, int64_t end)
{
    int error = 0, socket = socket_connect(address);
    socklen_t size = sizeof error;
    if (socket < 0)
        return false;
    stream_open(stream, socket);
    return wait_for(stream, POLLOUT, end) && getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 &&
        error == 0 && stream_send(stream, "%s", question);
}

static bool next_line(struct stream *stream, char line[LINE_SIZE], int64_t end)
{
    while (stream_line(stream, line) == NULL)
        if (!wait_for(stream, POLLIN, end) || !stream_receive(stream))
            return stream_line(stream, line) != NULL;
    return true;
}

/* ---- answers ------------------------------------------------------------------------------------------ */

static int show_state(const char *state, bool json)
{
    if (json)
        printf("{\"status\":\"%s\"}\n", state);
    else
        printf("%s\n", state);
    return EXIT_SUCCESS;
}

static void stamp(char text[64])
{
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    size_t length = strftime(text, 64, "%m/%d/%Y %H:%M:%S", localtime_r(&now.tv_sec, &parts));
    snprintf(text + length, 64 - length, ".%03ld", now.tv_nsec / 1000000);
}

static bool read_domain(struct stream *stream, char line[LINE_SIZE], struct domain *domain, int64_t end)
{
    if (sscanf(line, "DOMAIN %31s %d %u", domain->state, &domain->asked, &domain->count) != 3)
        return false;
    domain->peers = calloc(domain->count, sizeof *domain->peers);
    for (unsigned i = 0; domain->peers != NULL && i < domain->count; i++) {
        struct peer *peer = &domain->peers[i];
        if (!next_line(stream, line, end) ||
            sscanf(line, "NODE %u %255s %63s %31s %31s %255s %1023s", &peer->number, peer->name, peer->ip, peer->state,
                   peer->version, peer->hostname, peer->row) != 7)
            return false;
    }
    stamp(domain->time);
    return domain->peers != NULL;
}

static int show_domain(struct stream *stream, char line[LINE_SIZE], const struct options *options, int64_t end)
{
    struct domain domain = {.count = 0};
    bool whole = read_domain(stream, line, &domain, end);
    if (!whole)
        fprintf(stderr, "nvidia-imex-ctl: the daemon broke off its answer\n");
    else if (options->json)
        show_json(&domain);
    else
        show_table(&domain, options->hostnames);
    free(domain.peers);
    return whole ? EXIT_SUCCESS : EXIT_FAILURE;
}

static int run(const struct options *options)
{
    struct address address;
    struct stream stream = {.socket = -1};
    char line[LINE_SIZE];
    int64_t end = now_ms() + PATIENCE_MS;
    bool known = options->socket != NULL ? address_from_option(options->socket, &address)
                                         : address_from_config(options->config, &address);
    int code = EXIT_FAILURE;
    if (!known)
        return code;
    if (!ask(&stream, &address, options->query ? "QUERY" : "NODES", end) || !next_line(&stream, line, end))
        fprintf(stderr, "nvidia-imex-ctl: no IMEX daemon answers\n");
    else if (options->query)
        code = show_state(line, options->json);
    else
        code = show_domain(&stream, line, options, end);
    stream_close(&stream);
    return code;
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
