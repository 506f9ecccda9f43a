// SPDX-License-Identifier: Apache-2.0

#include "protocol.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

enum { PROGRAM = 35006, FIRST_VERSION = 1, LAST_VERSION = 2, RPC_VERSION = 2 };
enum { CALL = 0, REPLY = 1 };
enum { ANSWER_TIMEOUT_S = 25 }; /* that of programs which rpcgen has made */

static const uint32_t LAST_FRAGMENT = UINT32_C(1) << 31;

const char *pd_socket(void)
{
    const char *given = getenv("NVDRA_SIM_PERSISTENCED");
    return given != NULL && given[0] != '\0' ? given : PERSISTENCED_SOCKET;
}

/* ---- records -------------------------------------------------------------------------------------------------- */

static bool read_all(int file, void *buffer, size_t size)
{
    for (char *to = buffer; size > 0;) {
        ssize_t got = read(file, to, size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        to += got;
        size -= (size_t)got;
    }
    return true;
}

bool pd_read(int file, uint32_t words[PD_MAX_WORDS], size_t *count)
{
    uint32_t mark;
    if (!read_all(file, &mark, sizeof mark))
        return false;
    mark = ntohl(mark);
    size_t size = mark & ~LAST_FRAGMENT;
    if (!(mark & LAST_FRAGMENT) || size % 4 != 0 || size > 4 * PD_MAX_WORDS || !read_all(file, words, size))
        return false;
    *count = size / 4;
    for (size_t i = 0; i < *count; i++)
        words[i] = ntohl(words[i]);
    return true;
}

bool pd_write(int file, const uint32_t *words, size_t count)
{
    uint32_t record[1 + PD_MAX_WORDS] = {htonl(LAST_FRAGMENT | (uint32_t)(4 * count))};
    for (size_t i = 0; i < count; i++)
        record[1 + i] = htonl(words[i]);
    size_t size = 4 * (1 + count);
    return send(file, record, size, MSG_NOSIGNAL) == (ssize_t)size;
}

/* ---- calls ---------------------------------------------------------------------------------------------------- */

/* The place after credentials or a verifier: flavor, length in bytes, that many. 0: they do not end. */
static size_t after_authentication(const uint32_t *words, size_t count, size_t place)
{
    if (place == 0 || place + 2 > count || words[place + 1] > 400)
        return 0;
    size_t next = place + 2 + (words[place + 1] + 3) / 4;
    return next <= count ? next : 0;
}

enum pd_accepted pd_parse(const uint32_t *words, size_t count, struct pd_call *call)
{
    memset(call, 0, sizeof *call);
    if (count < 6 || words[1] != CALL || words[2] != RPC_VERSION)
        return PD_GARBAGE;
    call->xid = words[0];
    call->program = words[3];
    call->version = words[4];
    call->procedure = words[5];
    size_t place = after_authentication(words, count, after_authentication(words, count, 6));
    if (call->program != PROGRAM)
        return PD_NO_PROGRAM;
    if (call->version < FIRST_VERSION || call->version > LAST_VERSION)
        return PD_OTHER_VERSION;
    if (call->procedure == 0) /* the call of every program that does nothing */
        return PD_ACCEPTED;
    if (call->procedure > PD_GET_MODE)
        return PD_NO_PROCEDURE;
    bool has_mode = call->version == 2 || call->procedure == PD_SET_MODE;
    if (place == 0 || count != place + 4 + has_mode)
        return PD_GARBAGE;
    call->gpu = (struct pd_gpu){words[place], words[place + 1], words[place + 2]};
    call->mode = has_mode ? words[place + 4] : 0;
    return PD_ACCEPTED;
}

int pd_address(const char *path, struct sockaddr_un *address)
{
    char directory[PATH_MAX];
    const char *name = strrchr(path, '/');
    if (name == NULL || name == path || (size_t)(name - path) >= sizeof directory)
        return -1;
    memcpy(directory, path, (size_t)(name - path));
    directory[name - path] = '\0';
    int file = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(address->sun_path, sizeof address->sun_path, "/proc/self/fd/%d%.32s", file, name);
    return file;
}

static int connect_to(const struct sockaddr_un *address)
{
    struct timeval limit = {.tv_sec = ANSWER_TIMEOUT_S};
    int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (file >= 0 && connect(file, (const struct sockaddr *)address, sizeof *address) == 0) {
        setsockopt(file, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        return file;
    }
    if (file >= 0)
        close(file);
    return -1;
}

static int open_socket(void)
{
    struct stat info;
    struct sockaddr_un address;
    if (stat(pd_socket(), &info) != 0 || !S_ISSOCK(info.st_mode))
        return -1;
    int directory = pd_address(pd_socket(), &address);
    if (directory < 0)
        return -1;
    int file = connect_to(&address);
    close(directory);
    return file;
}

bool pd_ask(unsigned procedure, const struct pd_gpu *gpu, uint32_t *mode, enum pd_status *status)
{
    uint32_t words[PD_MAX_WORDS] = {(uint32_t)getpid(), CALL, RPC_VERSION, PROGRAM, FIRST_VERSION, procedure};
    size_t count = 10; /* no credentials, no verifier */
    words[count++] = gpu->domain;
    words[count++] = gpu->bus;
    words[count++] = gpu->slot;
    words[count++] = 0; /* the PCI function, which the daemon ignores */
    if (procedure == PD_SET_MODE)
        words[count++] = *mode;
    int file = open_socket();
    if (file < 0)
        return false;
    bool answered = pd_write(file, words, count) && pd_read(file, words, &count);
    close(file);
    /* xid, REPLY, accepted, a verifier without content, PD_ACCEPTED, the result */
    answered = answered && count >= 7 && words[1] == REPLY && words[2] == 0 && words[4] == 0 && words[5] == PD_ACCEPTED;
    if (!answered)
        return false;
    *status = words[6];
    if (procedure == PD_GET_MODE && *status == PD_SUCCESS)
        *mode = count > 7 && words[7];
    return true;
}
