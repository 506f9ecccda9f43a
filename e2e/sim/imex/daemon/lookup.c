// SPDX-License-Identifier: Apache-2.0

/* Names to addresses, each on a thread of its own: a name server that does not answer stops nobody else. */
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon.h"

enum { STACK_SIZE = 256 * 1024 };

struct lookup {
    struct lookup *next;
    struct answer answer;
    unsigned port;
    char name[NAME_SIZE];
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct lookup *finished;
static int announcement = -1;

void lookup_announce(int wake)
{
    announcement = wake;
}

static void finish(struct lookup *lookup)
{
    uint64_t one = 1;
    pthread_mutex_lock(&mutex);
    lookup->next = finished;
    finished = lookup;
    pthread_mutex_unlock(&mutex);
    if (write(announcement, &one, sizeof one) < 0)
        log_line(ERROR, "cannot announce the address of %s", lookup->name);
}

static void *look_up(void *given)
{
    struct lookup *lookup = given;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    char service[16];
    snprintf(service, sizeof service, "%u", lookup->port);
    if (getaddrinfo(lookup->name, service, &hints, &found) == 0) {
        lookup->answer.found = true;
        memcpy(&lookup->answer.address.socket, found->ai_addr, found->ai_addrlen);
        lookup->answer.address.size = found->ai_addrlen;
        address_unmap(&lookup->answer.address);
        freeaddrinfo(found);
    }
    finish(lookup);
    return NULL;
}

void lookup_begin(unsigned node, unsigned round, const char *name, unsigned port)
{
    struct lookup *lookup = calloc(1, sizeof *lookup);
    pthread_attr_t attributes;
    pthread_t thread;
    if (lookup == NULL)
        abort();
    lookup->answer.node = node;
    lookup->answer.round = round;
    lookup->port = port;
    snprintf(lookup->name, sizeof lookup->name, "%s", name);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_SIZE);
    if (pthread_create(&thread, &attributes, look_up, lookup) != 0)
        finish(lookup); /* without an address, like a name that nobody knows */
    pthread_attr_destroy(&attributes);
}

bool lookup_take(struct answer *answer)
{
    pthread_mutex_lock(&mutex);
    struct lookup *lookup = finished;
    if (lookup != NULL)
        finished = lookup->next;
    pthread_mutex_unlock(&mutex);
    if (lookup == NULL)
        return false;
    *answer = lookup->answer;
    free(lookup);
    return true;
}
