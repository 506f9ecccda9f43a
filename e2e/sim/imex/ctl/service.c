// SPDX-License-Identifier: Apache-2.0

/* Asks one daemon at its command service, and waits for the answer. */
#include <poll.h>
#include <string.h>

#include "ctl.h"

enum { CONNECT_MS = 3000 };

static bool wait_for(const struct stream *stream, short events, int64_t end)
{
    struct pollfd wait = {.fd = stream->socket, .events = events};
    int64_t left = end < 0 ? -1 : end - now_ms();
    return (end < 0 || left > 0) && poll(&wait, 1, (int)left) == 1;
}

static bool is_connected(const struct stream *stream)
{
    int error = 0;
    socklen_t size = sizeof error;
    return wait_for(stream, POLLOUT, now_ms() + CONNECT_MS) &&
        getsockopt(stream->socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

static bool next_line(struct stream *stream, char line[LINE_SIZE], int64_t end)
{
    while (stream_line(stream, line) == NULL)
        if (!wait_for(stream, POLLIN, end) || !stream_receive(stream))
            return stream_line(stream, line) != NULL;
    return true;
}

bool service_ask(const struct service *service, const struct address *address, const char *question,
                 char answer[LINE_SIZE])
{
    struct stream stream;
    int socket = socket_connect(address);
    if (socket < 0)
        return false;
    stream_open(&stream, socket);
    int64_t end = service->patience_ms < 0 ? -1 : now_ms() + service->patience_ms;
    bool answered = is_connected(&stream) && stream_send(&stream, "%s", question) && next_line(&stream, answer, end);
    stream_close(&stream);
    return answered;
}
