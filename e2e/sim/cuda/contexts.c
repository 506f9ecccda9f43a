// SPDX-License-Identifier: Apache-2.0

/* Contexts and memory. A context of a client of MPS is its server's; that of another process is on the GPU itself. */
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

#include "cuda.h"

struct context {
    unsigned device;
};

/* Memory has the addresses of this list's entries, and no content. */
struct block {
    struct block *next;
    unsigned device;
    uint64_t bytes;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned counts[MAX_DEVICES];
static uint64_t used_bytes[MAX_DEVICES]; /* of a process that computes by itself */
static struct block *blocks;
static _Thread_local struct context *current;

static enum cuda_result ask(const char *verb, unsigned device, uint64_t bytes)
{
    uint64_t free_bytes, total_bytes;
    return client_ask(verb, device, bytes, &free_bytes, &total_bytes);
}

static enum cuda_result open_first(unsigned device)
{
    return client_is_connected() ? ask("CONTEXT", device, 0) : device_open_context(&devices.device[device]);
}

static void close_last(unsigned device)
{
    if (client_is_connected())
        ask("RELEASE", device, 0);
    else
        device_close_context(&devices.device[device]);
    used_bytes[device] = 0;
}

EXPORT enum cuda_result cuCtxCreate_v2(struct context **made, unsigned flags, int device)
{
    (void)flags;
    if (!is_initialized())
        return CUDA_NOT_INITIALIZED;
    if (made == NULL)
        return CUDA_INVALID_VALUE;
    if (device < 0 || (unsigned)device >= devices.count)
        return CUDA_INVALID_DEVICE;
    struct context *context = malloc(sizeof *context);
    if (context == NULL)
        return CUDA_OUT_OF_MEMORY;
    pthread_mutex_lock(&mutex);
    enum cuda_result result = counts[device] > 0 ? CUDA_SUCCESS : open_first((unsigned)device);
    counts[device] += result == CUDA_SUCCESS;
    pthread_mutex_unlock(&mutex);
    if (result != CUDA_SUCCESS) {
        free(context);
        return result;
    }
    context->device = (unsigned)device;
    *made = current = context;
    return CUDA_SUCCESS;
}

EXPORT enum cuda_result cuCtxDestroy_v2(struct context *context)
{
    if (context == NULL)
        return CUDA_INVALID_CONTEXT;
    pthread_mutex_lock(&mutex);
    if (--counts[context->device] == 0)
        close_last(context->device);
    pthread_mutex_unlock(&mutex);
    if (current == context)
        current = NULL;
    free(context);
    return CUDA_SUCCESS;
}

EXPORT enum cuda_result cuCtxSetCurrent(struct context *context)
{
    current = context;
    return CUDA_SUCCESS;
}

/* The one call that finds out whether the server is still there. */
EXPORT enum cuda_result cuCtxSynchronize(void)
{
    if (current == NULL)
        return CUDA_INVALID_CONTEXT;
    return client_is_connected() ? ask("WAIT", current->device, 0) : CUDA_SUCCESS;
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

static enum cuda_result take(unsigned device, uint64_t bytes)
{
    if (client_is_connected())
        return ask("ALLOCATE", device, bytes);
    if (bytes > devices.device[device].memory_bytes - used_bytes[device])
        return CUDA_OUT_OF_MEMORY;
    used_bytes[device] += bytes;
    return CUDA_SUCCESS;
}

EXPORT enum cuda_result cuMemAlloc_v2(uintptr_t *address, size_t bytes)
{
    if (current == NULL)
        return CUDA_INVALID_CONTEXT;
    if (address == NULL || bytes == 0)
        return CUDA_INVALID_VALUE;
    struct block *block = malloc(sizeof *block);
    if (block == NULL)
        return CUDA_OUT_OF_MEMORY;
    pthread_mutex_lock(&mutex);
    enum cuda_result result = take(current->device, bytes);
    if (result == CUDA_SUCCESS) {
        *block = (struct block){blocks, current->device, bytes};
        blocks = block;
        *address = (uintptr_t)block;
    } else
        free(block);
    pthread_mutex_unlock(&mutex);
    return result;
}

EXPORT enum cuda_result cuMemFree_v2(uintptr_t address)
{
    enum cuda_result result = CUDA_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    for (struct block **link = &blocks; *link != NULL; link = &(*link)->next) {
        struct block *block = *link;
        if ((uintptr_t)block != address)
            continue;
        result = client_is_connected() ? ask("FREE", block->device, block->bytes) : CUDA_SUCCESS;
        if (!client_is_connected())
            used_bytes[block->device] -= block->bytes;
        *link = block->next;
        free(block);
        break;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

EXPORT enum cuda_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    uint64_t left, total;
    if (current == NULL)
        return CUDA_INVALID_CONTEXT;
    if (free_bytes == NULL || total_bytes == NULL)
        return CUDA_INVALID_VALUE;
    enum cuda_result result = CUDA_SUCCESS;
    if (client_is_connected())
        result = client_ask("MEMORY", current->device, 0, &left, &total);
    else {
        total = devices.device[current->device].memory_bytes;
        left = total - used_bytes[current->device];
    }
    if (result == CUDA_SUCCESS) {
        *free_bytes = left;
        *total_bytes = total;
    }
    return result;
}
