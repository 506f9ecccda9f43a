// SPDX-License-Identifier: Apache-2.0

/*
 * A process as a client of MPS (nvml-simulator.md §17): cuInit looks for a control daemon, whether or not anybody
 * asked for one. A server that ends takes the GPUs away from its clients for good.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int server = -1;
static bool is_connected;
static double percentage = 100;
static uint64_t own_limits[MAX_DEVICES], used_bytes[MAX_DEVICES]; /* limits: 0 is none */

bool client_is_connected(void)
{
    return is_connected;
}

double client_percentage(void)
{
    return percentage;
}

/* What the environment of this process says makes limits lower, never higher. */
static void lower_percentage(void)
{
    const char *text = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    double own = text != NULL ? strtod(text, NULL) : 0;
    if (own > 0 && own < percentage)
        percentage = own;
}

static void lower_limits(const struct cuda_devices *known)
{
    const char *list = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    char id[TEXT_SIZE];
    uint64_t bytes;
    while (list != NULL && next_limit(&list, id, &bytes)) {
        char *end;
        unsigned long index = strtoul(id, &end, 10);
        int place = *end == '\0' ? (int)index : device_find(known, id);
        if (place >= 0 && (unsigned)place < known->count)
            own_limits[place] = bytes;
    }
}

/* `text` is what the server has: a percentage, then UUIDs. */
static void keep_common(struct cuda_devices *known, char *text)
{
    static struct cuda_devices kept;
    char *rest, *word = strtok_r(text, " ", &rest);
    percentage = word != NULL ? strtod(word, NULL) : 100;
    kept.count = 0;
    while ((word = strtok_r(NULL, " ", &rest)) != NULL) {
        int place = device_find(known, word);
        if (place >= 0)
            kept.device[kept.count++] = known->device[place];
    }
    *known = kept;
}

enum cuda_result client_connect(struct cuda_devices *known)
{
    static char text[MESSAGE_SIZE];
    int failure;
    const char *directory = mps_directory("CUDA_MPS_PIPE_DIRECTORY", DEFAULT_PIPE_DIRECTORY);
    int control = mps_connect(directory, CLIENT_SOCKET);
    if (control < 0)
        return CUDA_NOT_FOUND;
    bool answered = message_receive(control, text, NULL) > 0;
    if (!answered || strncmp(text, "WELCOME ", 8) != 0) {
        close(control);
        bool has_reason = answered && sscanf(text, "FAILED %d", &failure) == 1;
        return has_reason ? (enum cuda_result)failure : CUDA_MPS_CONNECTION_FAILED;
    }
    server = control;
    is_connected = true;
    keep_common(known, text + 8);
    lower_percentage();
    lower_limits(known);
    return CUDA_SUCCESS;
}

static enum cuda_result exchange(const char *request, uint64_t *free_bytes, uint64_t *total_bytes)
{
    static char text[MESSAGE_SIZE];
    int result;
    unsigned long long left, total;
    if (!message_send(server, "%s", request) || message_receive(server, text, NULL) == 0 ||
        sscanf(text, "%d %llu %llu", &result, &left, &total) != 3)
        return CUDA_MPS_RPC_FAILURE;
    *free_bytes = left;
    *total_bytes = total;
    return (enum cuda_result)result;
}

/* What the limit of this process itself leaves of what the server says. */
static void apply_own_limit(unsigned device, uint64_t *free_bytes, uint64_t *total_bytes)
{
    uint64_t limit = own_limits[device], used = used_bytes[device];
    if (limit == 0 || limit >= *total_bytes)
        return;
    *total_bytes = limit;
    if (*free_bytes > (limit > used ? limit - used : 0))
        *free_bytes = limit > used ? limit - used : 0;
}

enum cuda_result client_ask(
    const char *verb, unsigned device, uint64_t bytes, uint64_t *free_bytes, uint64_t *total_bytes)
{
    char request[2 * TEXT_SIZE + 32];
    bool allocates = strcmp(verb, "ALLOCATE") == 0;
    snprintf(request, sizeof request, "%s %s %llu", verb, devices.device[device].uuid, (unsigned long long)bytes);
    pthread_mutex_lock(&mutex);
    enum cuda_result result = CUDA_OUT_OF_MEMORY;
    if (!allocates || own_limits[device] == 0 || bytes <= own_limits[device] - used_bytes[device])
        result = exchange(request, free_bytes, total_bytes);
    if (result == CUDA_SUCCESS) {
        if (allocates)
            used_bytes[device] += bytes;
        else if (strcmp(verb, "FREE") == 0)
            used_bytes[device] -= bytes;
        else if (strcmp(verb, "RELEASE") == 0)
            used_bytes[device] = 0;
        apply_own_limit(device, free_bytes, total_bytes);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}
