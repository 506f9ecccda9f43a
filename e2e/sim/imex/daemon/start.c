// SPDX-License-Identifier: Apache-2.0

/* The start of nvidia-imex: command line, configuration, the background, and everything that can be missing. */
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "start.h"

static const char USAGE[] =
    "NVIDIA IMEX service of a simulated driver\n"
    "\n"
    "nvidia-imex [OPTION]...\n"
    "\n"
    "    -c FILE         The configuration; default: " DEFAULT_CONFIG "\n"
    "    --nogpu         Run without a driver; the version is NO_GPU.\n"
    "    --require-cap   Do not start without the device node of the capability fabric-imex-mgmt.\n"
    "    -v, --version   Show the version.\n"
    "    -h, --help      Show this text.\n";

bool options_read(char **arguments, struct options *options)
{
    *options = (struct options){.config = DEFAULT_CONFIG};
    for (int place = 1; arguments[place] != NULL; place++) {
        const char *argument = arguments[place];
        if (strcmp(argument, "-c") == 0 && arguments[place + 1] != NULL) {
            options->config = arguments[++place];
        } else if (strcmp(argument, "--nogpu") == 0) {
            options->has_no_gpu = true;
        } else if (strcmp(argument, "--require-cap") == 0) {
            options->needs_capability = true;
        } else if (strcmp(argument, "-v") == 0 || strcmp(argument, "--version") == 0) {
            printf("IMEX version is: %s\n", host_open() ? host_description()->driver_version : "unknown");
            exit(EXIT_SUCCESS);
        } else if (strcmp(argument, "-h") == 0 || strcmp(argument, "--help") == 0) {
            fputs(USAGE, stdout);
            exit(EXIT_SUCCESS);
        } else {
            fprintf(stderr, "nvidia-imex: \"%s\" is no option, or lacks its value\n%s", argument, USAGE);
            return false;
        }
    }
    return true;
}

void complain_in_log(bool fatal, const char *file, unsigned line, const char *problem)
{
    if (line == 0)
        log_line(ERROR, "cannot read %s: %s", file, problem);
    else
        log_line(fatal ? ERROR : WARNING, "%s:%u: %s", file, line, problem);
}

/* ---- the background ----------------------------------------------------------------------------------- */

static int parent = -1; /* where the process that was started waits for a word */

void background_enter(void)
{
    int ends[2];
    char word;
    if (pipe(ends) != 0)
        return;
    pid_t child = fork();
    if (child != 0) {
        close(ends[1]);
        exit(child > 0 && read(ends[0], &word, 1) == 1 ? EXIT_SUCCESS : EXIT_FAILURE);
    }
    close(ends[0]);
    parent = ends[1];
    setsid();
}

void background_is_up(void)
{
    if (parent < 0)
        return;
    if (write(parent, "", 1) != 1)
        log_line(WARNING, "cannot tell the process that was started");
    close(parent);
    parent = -1;
    bool logs_there = self.config.log_file[0] == '\0' && !self.config.use_syslog;
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int file = STDIN_FILENO; nothing >= 0 && file <= STDERR_FILENO; file++)
        if (file != STDERR_FILENO || !logs_there)
            dup2(nothing, file);
    if (nothing >= 0)
        close(nothing);
}

/* ---- addresses ---------------------------------------------------------------------------------------- */

static socklen_t size_of(const struct sockaddr *address)
{
    return address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

/* The first address of this host that is at this interface, or equals that one; NULL leaves a condition out. */
static bool own_address(const char *interface, const struct address *wanted, struct address *address)
{
    struct ifaddrs *all;
    bool found = false;
    if (getifaddrs(&all) != 0)
        return false;
    for (const struct ifaddrs *one = all; one != NULL && !found; one = one->ifa_next) {
        if (one->ifa_addr == NULL || (one->ifa_addr->sa_family != AF_INET && one->ifa_addr->sa_family != AF_INET6))
            continue;
        memset(address, 0, sizeof *address);
        address->size = size_of(one->ifa_addr);
        memcpy(&address->socket, one->ifa_addr, address->size);
        found = (interface == NULL || strcmp(one->ifa_name, interface) == 0) &&
            (wanted == NULL || address_same_host(address, wanted));
    }
    freeifaddrs(all);
    return found;
}

bool address_is_own(const struct address *address)
{
    struct address bound, found;
    if (self.config.bind_ip[0] != '\0')
        return address_parse(self.config.bind_ip, 0, &bound) && address_same_host(address, &bound);
    return own_address(NULL, address, &found);
}

static bool bind_everywhere(unsigned port)
{
    struct address address;
    int file = address_parse("::", port, &address) ? socket_bind(&address) : -1;
    if (file >= 0)
        close(file);
    else if (errno != EADDRINUSE)
        address_parse("0.0.0.0", port, &address); /* a host without IPv6 */
    return guests_bind(&address);
}

/* Where the others find this node. */
static bool bind_to_others(void)
{
    const struct config *config = &self.config;
    unsigned port = (unsigned)config->server_port;
    struct address address;
    if (config->bind_ip[0] == '\0' && config->network_interface[0] == '\0')
        return bind_everywhere(port);
    if (config->bind_ip[0] != '\0') {
        if (address_parse(config->bind_ip, port, &address)) {
            address_set_interface(&address, config->network_interface);
            return guests_bind(&address);
        }
        log_line(ERROR, "BIND_INTERFACE_IP is %s, which is no address", config->bind_ip);
        return false;
    }
    if (!own_address(config->network_interface, NULL, &address)) {
        log_line(ERROR, "there is no address at the network interface %s", config->network_interface);
        return false;
    }
    address_set_port(&address, port);
    return guests_bind(&address);
}

/* ---- what must be there ------------------------------------------------------------------------------- */

bool host_is_fit(const struct options *options)
{
    self.has_no_gpu = options->has_no_gpu;
    if (!host_open() || (!self.has_no_gpu && !host_driver_is_loaded())) {
        log_line(ERROR, "the NVIDIA driver is not loaded");
        return false;
    }
    if (self.has_no_gpu)
        return true;
    if ((options->needs_capability || host_description()->imex_needs_capability) && !host_has_capability()) {
        log_line(ERROR, "the device node of the capability fabric-imex-mgmt is missing");
        return false;
    }
    if (!host_claim()) {
        log_line(ERROR, "another IMEX instance runs on this host, and its driver accepts one");
        return false;
    }
    return true;
}

/* Whether this version of IMEX takes names for nodes; before 570.158.01 it took addresses only. */
static bool takes_names(void)
{
    unsigned branch = 0, minor = 0, patch = 0;
    sscanf(host_description()->driver_version, "%u.%u.%u", &branch, &minor, &patch);
    return branch != 570 ? branch > 570 : minor != 158 ? minor > 158 : patch >= 1;
}

static bool nodes_are_fit(void)
{
    struct address address;
    for (unsigned node = 0; !takes_names() && node < self.nodes.count; node++) {
        if (!address_parse(self.nodes.name[node], 0, &address)) {
            log_line(ERROR, "%s: %s is no address, and this version takes no names", self.config.nodes_file,
                     self.nodes.name[node]);
            return false;
        }
    }
    return true;
}

bool doors_open(void)
{
    return nodes_read(self.config.nodes_file, &self.nodes, complain_in_log) && nodes_are_fit() && bind_to_others() &&
        commands_open();
}
