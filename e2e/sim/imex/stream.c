// SPDX-License-Identifier: Apache-2.0

/* Lines of text over a socket that is never waited for. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "imex.h"

enum { LARGEST_BACKLOG = 1 << 20 }; /* bytes; who reads so slowly is given up */

void stream_open(struct stream *stream, int socket)
{
    *stream = (struct stream){.socket = socket};
}

void stream_close(struct stream *stream)
{
    if (stream->socket >= 0)
        close(stream->socket);
    free(stream->out);
    *stream = (struct stream){.socket = -1};
}

bool stream_receive(struct stream *stream)
{
    size_t room = sizeof stream->in - stream->in_used;
    if (room == 0)
        return false;
    ssize_t got = recv(stream->socket, stream->in + stream->in_used, room, MSG_DONTWAIT);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR;
    stream->in_used += (size_t)got;
    return got > 0;
}

const char *stream_line(struct stream *stream, char line[LINE_SIZE])
{
    char *end = memchr(stream->in, '\n', stream->in_used);
    if (end == NULL)
        return NULL;
    size_t length = (size_t)(end - stream->in);
    memcpy(line, stream->in, length);
    line[length] = '\0';
    stream->in_used -= length + 1;
    memmove(stream->in, end + 1, stream->in_used);
    return line;
}

bool stream_flush(struct stream *stream)
{
    while (stream->out_used > 0) {
        ssize_t sent = send(stream->socket, stream->out, stream->out_used, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0)
            return errno == EAGAIN || errno == EINTR;
        stream->out_used -= (size_t)sent;
        memmove(stream->out, stream->out + sent, stream->out_used);
    }
    return true;
}

bool stream_send(struct stream *stream, const char *format, ...)
{
    char line[LINE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (length < 0 || length >= (int)sizeof line - 1 || stream->out_used + (size_t)length + 1 > LARGEST_BACKLOG)
        return false;
    line[length++] = '\n';
    char *out = realloc(stream->out, stream->out_used + (size_t)length);
    if (out == NULL)
        return false;
    memcpy(out + stream->out_used, line, (size_t)length);
    stream->out = out;
    stream->out_used += (size_t)length;
    return stream_flush(stream);
}
