// SPDX-License-Identifier: Apache-2.0

/* What the loop waits for, as its parts add to it. */
#include "daemon.h"

unsigned waits_add(struct waits *waits, int file, bool also_to_send)
{
    waits->polls[waits->count] = (struct pollfd){.fd = file, .events = POLLIN | (also_to_send ? POLLOUT : 0)};
    return waits->count++;
}

unsigned waits_add_stream(struct waits *waits, const struct stream *stream)
{
    return waits_add(waits, stream->socket, stream->out_used > 0);
}
