// SPDX-License-Identifier: Apache-2.0

/* Sockets in the pipe directory, and what the environment says. */
#include "mps.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

const char *mps_directory(const char *variable, const char *otherwise)
{
    const char *value = getenv(variable);
    return value != NULL && value[0] != '\0' ? value : otherwise;
}

/* ---- sockets ------------------------------------------------------------------------------------------- */

static bool name_socket(const char *directory, const char *name, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(address->sun_path, sizeof address->sun_path, "%s/%s", directory, name);
    errno = ENAMETOOLONG;
    return length > 0 && (size_t)length < sizeof address->sun_path;
}

static int closed(int file)
{
    int error = errno;
    close(file);
    errno = error;
    return -1;
}

int mps_connect(const char *directory, const char *name)
{
    struct sockaddr_un address;
    if (!name_socket(directory, name, &address))
        return -1;
    int file = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (file < 0 || connect(file, (const struct sockaddr *)&address, sizeof address) == 0)
        return file;
    return closed(file);
}

int mps_listen(const char *directory, const char *name, mode_t mode)
{
    struct sockaddr_un address;
    if (!name_socket(directory, name, &address))
        return -1;
    int file = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (file < 0)
        return -1;
    unlink(address.sun_path);
    bool done = bind(file, (const struct sockaddr *)&address, sizeof address) == 0 &&
                chmod(address.sun_path, mode) == 0 && listen(file, SOMAXCONN) == 0;
    return done ? file : closed(file);
}

/* ---- messages ------------------------------------------------------------------------------------------ */

bool message_send(int socket, const char *format, ...)
{
    char text[MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= sizeof text)
        return false;
    return send(socket, text, (size_t)length + 1, MSG_NOSIGNAL) == length + 1;
}

union file_message {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

bool message_send_file(int socket, int file, const char *text)
{
    union file_message control = {.header = {.cmsg_len = CMSG_LEN(sizeof file),
                                             .cmsg_level = SOL_SOCKET,
                                             .cmsg_type = SCM_RIGHTS}};
    struct iovec part = {.iov_base = (void *)text, .iov_len = strlen(text) + 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    memcpy(CMSG_DATA(&control.header), &file, sizeof file);
    return sendmsg(socket, &message, MSG_NOSIGNAL) >= 0;
}

size_t message_receive(int socket, char text[MESSAGE_SIZE], int *file)
{
    union file_message control;
    struct iovec part = {.iov_base = text, .iov_len = MESSAGE_SIZE - 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t length;
    do
        length = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (length < 0 && errno == EINTR);
    text[length > 0 ? length : 0] = '\0';
    int received = -1;
    struct cmsghdr *header = length > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (header != NULL && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
        memcpy(&received, CMSG_DATA(header), sizeof received);
    if (file != NULL)
        *file = received;
    else if (received >= 0)
        close(received);
    return length > 0 ? (size_t)length : 0;
}

/* ---- amounts of memory --------------------------------------------------------------------------------- */

uint64_t parse_memory(const char *text)
{
    char *unit;
    errno = 0;
    unsigned long long number = strtoull(text, &unit, 10);
    if (errno != 0 || unit == text || text[0] == '-' || unit[0] == '\0' || unit[1] != '\0')
        return 0;
    switch (unit[0]) {
    case 'G':
    case 'g':
        return number > UINT64_MAX >> 30 ? 0 : number << 30;
    case 'M':
    case 'm':
        return number > UINT64_MAX >> 20 ? 0 : number << 20;
    case 'K':
    case 'k':
        return number > UINT64_MAX >> 10 ? 0 : number << 10;
    default:
        return 0;
    }
}

bool next_limit(const char **list, char id[TEXT_SIZE], uint64_t *bytes)
{
    while (**list != '\0') {
        char entry[2 * TEXT_SIZE];
        size_t length = strcspn(*list, ",");
        snprintf(entry, sizeof entry, "%.*s", (int)length, *list);
        *list += length + ((*list)[length] == ',');
        char *value = strchr(entry, '=');
        if (value == NULL || value - entry >= TEXT_SIZE)
            continue;
        *value = '\0';
        *bytes = parse_memory(value + 1);
        if (*bytes == 0)
            continue;
        strcpy(id, entry);
        return true;
    }
    return false;
}
