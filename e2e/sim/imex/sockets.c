// SPDX-License-Identifier: Apache-2.0

/* Addresses, and sockets that never make anybody wait. */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "imex.h"

int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

bool address_parse(const char *ip, unsigned port, struct address *address)
{
    char service[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV}, *found;
    snprintf(service, sizeof service, "%u", port);
    if (*ip == '\0' || getaddrinfo(ip, service, &hints, &found) != 0)
        return false;
    memset(address, 0, sizeof *address);
    memcpy(&address->socket, found->ai_addr, found->ai_addrlen);
    address->size = found->ai_addrlen;
    freeaddrinfo(found);
    return true;
}

void address_format(const struct address *address, char ip[IP_SIZE])
{
    const void *bytes = address->socket.ss_family == AF_INET6
        ? (const void *)&((const struct sockaddr_in6 *)&address->socket)->sin6_addr
        : (const void *)&((const struct sockaddr_in *)&address->socket)->sin_addr;
    if (inet_ntop(address->socket.ss_family, bytes, ip, IP_SIZE) == NULL)
        ip[0] = '\0';
}

void address_set_port(struct address *address, unsigned port)
{
    if (address->socket.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&address->socket)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)&address->socket)->sin_port = htons((uint16_t)port);
}

void address_set_interface(struct address *address, const char *interface)
{
    struct sockaddr_in6 *wide = (struct sockaddr_in6 *)&address->socket;
    if (address->socket.ss_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&wide->sin6_addr) && wide->sin6_scope_id == 0)
        wide->sin6_scope_id = if_nametoindex(interface);
}

void address_unmap(struct address *address)
{
    const struct sockaddr_in6 *wide = (const struct sockaddr_in6 *)&address->socket;
    if (address->socket.ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&wide->sin6_addr))
        return;
    struct sockaddr_in narrow = {.sin_family = AF_INET, .sin_port = wide->sin6_port};
    memcpy(&narrow.sin_addr, &wide->sin6_addr.s6_addr[12], sizeof narrow.sin_addr);
    memset(address, 0, sizeof *address);
    memcpy(&address->socket, &narrow, sizeof narrow);
    address->size = sizeof narrow;
}

bool address_same_host(const struct address *one, const struct address *other)
{
    char first[IP_SIZE], second[IP_SIZE];
    address_format(one, first);
    address_format(other, second);
    return strcmp(first, second) == 0;
}

bool address_of_path(const char *path, struct address *address)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof name.sun_path)
        return false;
    strcpy(name.sun_path, path);
    memset(address, 0, sizeof *address);
    memcpy(&address->socket, &name, sizeof name);
    address->size = sizeof name;
    return true;
}

static int opened(const struct address *address)
{
    return socket(address->socket.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static int closed_with(int file, int error)
{
    close(file);
    errno = error;
    return -1;
}

int socket_connect(const struct address *address)
{
    int file = opened(address), on = 1;
    if (file < 0)
        return -1;
    if (address->socket.ss_family != AF_UNIX)
        setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(file, (const struct sockaddr *)&address->socket, address->size) != 0 && errno != EINPROGRESS)
        return closed_with(file, errno);
    return file;
}

int socket_bind(const struct address *address)
{
    int file = opened(address), on = 1, off = 0;
    if (file < 0)
        return -1;
    setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->socket.ss_family == AF_INET6)
        setsockopt(file, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(file, (const struct sockaddr *)&address->socket, address->size) != 0)
        return closed_with(file, errno);
    return file;
}
