// SPDX-License-Identifier: Apache-2.0

/* The domain as its nodes describe it, each asked at its command service; a node's peers cannot speak for it. */
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ctl.h"

struct question {
    const struct service *service;
    const char *name;
    struct peer *peer;
};

static bool find(const char *name, const struct service *asked, struct address *address)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    char service[16];
    snprintf(service, sizeof service, "%u", asked->port);
    if (getaddrinfo(name, service, &hints, &found) != 0)
        return false;
    memset(address, 0, sizeof *address);
    memcpy(&address->socket, found->ai_addr, found->ai_addrlen);
    address->size = found->ai_addrlen;
    freeaddrinfo(found);
    address_unmap(address);
    address_set_interface(address, asked->interface);
    return true;
}

static bool read_row(const char *line, struct peer *peer, int *number)
{
    _Static_assert(MAX_NODES == 256, "the last width in the next format");
    return sscanf(line, "ROW %d %31s %31s %255s %256s", number, peer->state, peer->version, peer->hostname, peer->row) == 5;
}

static void *ask(void *given)
{
    const struct question *question = given;
    struct address address;
    struct peer peer;
    char line[LINE_SIZE];
    int number;
    if (find(question->name, question->service, &address) &&
        service_ask(question->service, &address, "ROW", line) && read_row(line, &peer, &number))
        *question->peer = peer;
    return NULL;
}

static void ask_all(struct domain *domain, const struct service *service)
{
    static struct question questions[MAX_NODES];
    static pthread_t threads[MAX_NODES];
    for (unsigned node = 0; node < domain->nodes.count; node++) {
        questions[node] = (struct question){service, domain->nodes.name[node], &domain->peers[node]};
        if (pthread_create(&threads[node], NULL, ask, &questions[node]) != 0)
            abort();
    }
    for (unsigned node = 0; node < domain->nodes.count; node++)
        pthread_join(threads[node], NULL);
}

/* UP: all are ready and connected to all; DOWN: nobody is ready. */
static const char *state_of(const struct domain *domain)
{
    bool all = true, any = false;
    for (unsigned node = 0; node < domain->nodes.count; node++) {
        bool is_ready = strcmp(domain->peers[node].state, STATE_NAMES[READY]) == 0;
        any |= is_ready;
        all &= is_ready && strspn(domain->peers[node].row, "C") == domain->nodes.count;
    }
    return all ? "UP" : any ? "DEGRADED" : "DOWN";
}

static void stamp(char text[64])
{
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &parts);
    snprintf(text, 64, "%d/%d/%d %02d:%02d:%02d.%03ld", parts.tm_mon + 1, parts.tm_mday, parts.tm_year + 1900,
             parts.tm_hour, parts.tm_min, parts.tm_sec, now.tv_nsec / 1000000);
}

void domain_learn(struct domain *domain, const struct service *service)
{
    char line[LINE_SIZE];
    struct peer own;
    for (unsigned node = 0; node < domain->nodes.count; node++) {
        struct peer *peer = &domain->peers[node];
        *peer = (struct peer){.hostname = "N/A"};
        strcpy(peer->state, STATE_NAMES[UNAVAILABLE]);
        memset(peer->row, CONNECTION_LETTERS[INVALID], domain->nodes.count);
    }
    if (!service_ask(service, &service->own, "ROW", line) || !read_row(line, &own, &domain->asked))
        domain->asked = UNKNOWN;
    ask_all(domain, service);
    if (domain->asked >= 0 && domain->asked < (int)domain->nodes.count)
        domain->peers[domain->asked] = own; /* also where others do not reach it */
    domain->state = state_of(domain);
    stamp(domain->time);
}
