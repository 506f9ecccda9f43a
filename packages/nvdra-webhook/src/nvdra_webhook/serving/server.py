# SPDX-License-Identifier: Apache-2.0
"""The HTTPS server: one listening address, and all its connections.

uvloop does TLS and sockets, llhttp parses. docs/decisions/webhook.md says what that is measured
against.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from nvdra_runtime.http import acceptor
from nvdra_runtime.http.connections import Connections, OnDropped
from nvdra_runtime.telemetry import logs

from nvdra_webhook.serving.connection import Connection, Limits
from nvdra_webhook.serving.exchange import Respond
from nvdra_webhook.serving.turns import Turns

LOG: Final = logs.logger(__name__)

MAX_CONNECTIONS: Final = 512
"""An API server opens as many as it has requests at once. An idle one costs 130 KB of memory, most
of it TLS's."""
MAX_BYTES: Final = 32 << 20
"""Of requests that have not arrived completely. The largest is 8 MiB, a usual one 4 KB."""


@asynccontextmanager
async def serve(
    host: str,
    port: int,
    context: ssl.SSLContext,
    respond: Respond,
    limits: Limits,
    on_failure: Callable[[], None],
    on_dropped: OnDropped,
) -> AsyncIterator[str]:
    """Serve HTTPS while the block runs. Yields `host:port`; port 0 selects a free one.

    At the end no new connection is let in, and requests that are half received may arrive.

    Args:
        host: Address to listen on; empty for all.
        port: The port.
        context: TLS. Its key pair may change while the server runs.
        respond: Answers requests.
        limits: What clients may do.
        on_failure: Called for each request that was answered with 500.
        on_dropped: Called for each connection that was closed too early for its client.

    Raises:
        OSError: The address cannot be used.
    """
    clock = asyncio.get_running_loop().time
    connections: Connections[Connection] = Connections(
        "https", MAX_CONNECTIONS, MAX_BYTES, on_dropped
    )

    turns = Turns(asyncio.get_running_loop())

    def connection() -> Connection:
        return Connection(respond, limits, clock, on_failure, connections, turns.take)

    try:
        async with acceptor.accept(host or None, port, connection, connections, context) as bound:
            shown = f"{bound[0]}:{bound[1]}"
            LOG.info("Listening for HTTPS", address=shown)
            yield shown
    finally:
        await _drain(connections, limits.body_s)


async def _drain(connections: Connections[Connection], timeout_s: float) -> None:
    """Close idle connections at once, others after their request; all after the timeout."""
    for client in connections.clients():
        client.drain()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await connections.wait_until_empty()
    for client in connections.clients():
        client.end_of_time()
