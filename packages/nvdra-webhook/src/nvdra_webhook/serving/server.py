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

from nvdra_runtime.process import background_tasks
from nvdra_runtime.telemetry import logs

from nvdra_webhook.serving.connection import Connection, Limits
from nvdra_webhook.serving.exchange import Respond

LOG: Final = logs.logger(__name__)

MAX_CONNECTIONS: Final = 1024
"""An API server keeps a few. With more than this, memory for bodies would have no bound."""

_HANDSHAKE_S: Final = 5.0
_SWEEP_S: Final = 1.0


class Server:
    """All connections of one listener. `serve` creates it."""

    def __init__(self, respond: Respond, limits: Limits, on_failure: Callable[[], None]) -> None:
        self._respond = respond
        self._limits = limits
        self._on_failure = on_failure
        self._connections: set[Connection] = set()
        self._on_empty: asyncio.Event | None = None

    def connection(self) -> Connection:
        """A connection that waits for its client."""
        clock = asyncio.get_running_loop().time
        return Connection(
            self._respond,
            self._limits,
            clock,
            self._on_failure,
            self._open,
            self._closed,
        )

    async def close_late_connections(self) -> None:
        """Close those that are too slow or idle for too long. Run until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = clock()
            for each in [one for one in self._connections if one.deadline <= now]:
                each.end_of_time()

    async def drain(self, timeout_s: float) -> None:
        """Close idle connections at once, others after their request; all after the timeout."""
        for each in list(self._connections):
            each.drain()
        self._on_empty = asyncio.Event()
        if self._connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._on_empty.wait()
        for each in list(self._connections):
            each.end_of_time()

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if self._on_empty is not None and not self._connections:
            self._on_empty.set()

    def _open(self, connection: Connection) -> bool:
        if len(self._connections) >= MAX_CONNECTIONS:
            return False
        self._connections.add(connection)
        return True


@asynccontextmanager
async def serve(
    host: str,
    port: int,
    context: ssl.SSLContext,
    respond: Respond,
    limits: Limits,
    on_failure: Callable[[], None],
) -> AsyncIterator[str]:
    """Serve HTTPS while the block runs. Yields `host:port`; port 0 selects a free one.

    At the end nobody new is let in, and requests that are half received may arrive.

    Args:
        host: Address to listen on; empty for all.
        port: The port.
        context: TLS. Its key pair may change while the server runs.
        respond: Answers requests.
        limits: What clients may do.
        on_failure: Called for each request that was answered with 500.

    Raises:
        OSError: The address cannot be used.
    """
    server = Server(respond, limits, on_failure)
    listener = await asyncio.get_running_loop().create_server(
        server.connection,
        host or None,
        port,
        ssl=context,
        ssl_handshake_timeout=_HANDSHAKE_S,
        backlog=1024,
    )
    name = listener.sockets[0].getsockname()
    shown = f"{name[0]}:{name[1]}"
    LOG.info("Listening for HTTPS", address=shown)
    try:
        async with background_tasks.running(late_connections=server.close_late_connections()):
            yield shown
    finally:
        listener.close()
        await server.drain(limits.body_s)
