# SPDX-License-Identifier: Apache-2.0
"""A plain HTTP server for one address and its routes. Source: docs/design.md, "Settled" (ports)."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final, cast

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from nvdra_runtime.http import acceptor, responses
from nvdra_runtime.http.connections import BoundedConnection, Connections, OnDropped
from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)

MAX_CONNECTIONS: Final = 256
"""Probes have one each, and a Prometheus or two."""

REQUEST_S: Final = 5.0
"""From the connection, or the first byte of a request, to the end of its headers."""
_IDLE_S: Final = 90.0
"""Between two requests. Prometheus asks once a minute, and keeps its connection."""

_SHUTDOWN_S = 1.0
"""How long leaving waits for a request in progress. None of our requests takes longer."""


def parse_address(address: str) -> tuple[str | None, int]:
    """Parse `host:port`, `[IPv6]:port` or `:port`. A host of None means every interface.

    Raises:
        ValueError: The address is not valid.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is not host:port or :port, such as :8080")
    return host.removeprefix("[").removesuffix("]") or None, int(port)


@asynccontextmanager
async def listen(
    address: str,
    routes: Sequence[web.RouteDef],
    *,
    name: str = "http",
    on_dropped: OnDropped = lambda _server, _why: None,
    middlewares: Sequence[Middleware] = (),
    request_s: float = REQUEST_S,
) -> AsyncIterator[str]:
    """Serve `routes` on `address`. Yields the address in use, because port 0 selects a free port.

    Other paths are answered with 404 and the list of the routes.

    Args:
        address: `host:port`.
        routes: What there is.
        name: The server's name in the log and in metrics.
        on_dropped: Called for each connection that was closed too early for its client.
        middlewares: See each request before its route does.
        request_s: How long a client may take to send a request.

    Raises:
        ValueError: The address is not valid.
        OSError: The address cannot be used; the message names it.
    """
    host, port = parse_address(address)
    clock = asyncio.get_running_loop().time
    clients: dict[asyncio.BaseProtocol, _HttpConnection] = {}
    application = web.Application(middlewares=[_timed(clients), *middlewares])
    application.add_routes([*routes, web.route("*", "/{rest:.*}", _not_found_handler(routes))])
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=_SHUTDOWN_S)
    await runner.setup()
    # The bodies that are read here are commands of the loopback.
    connections: Connections[_HttpConnection] = Connections(name, MAX_CONNECTIONS, 0, on_dropped)

    def client() -> _HttpConnection:
        server = runner.server
        assert server is not None  # until `cleanup`
        return _HttpConnection(server(), clock, request_s, clients, connections)

    try:
        async with acceptor.accept(host, port, client, connections) as (bound_host, bound_port):
            shown_host = f"[{bound_host}]" if ":" in bound_host else bound_host
            LOG.v(1, "Listening for HTTP", address=f"{shown_host}:{bound_port}")
            yield f"{shown_host}:{bound_port}"
    finally:
        await runner.cleanup()


class _HttpConnection(BoundedConnection):
    """A connection whose requests aiohttp reads and answers.

    aiohttp waits for a request for an hour, and for its headers without end.
    """

    def __init__(
        self,
        handler: web.RequestHandler,
        clock: Callable[[], float],
        request_s: float,
        clients: "dict[asyncio.BaseProtocol, _HttpConnection]",
        connections: "Connections[_HttpConnection]",
    ) -> None:
        now = clock()
        super().__init__(now, now + request_s)
        self._request_s = request_s
        self._handler = handler
        self._clock = clock
        self._clients = clients
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client is connected."""
        self.transport = cast("asyncio.Transport", transport)
        self._clients[self._handler] = self
        self._handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self.transport = None
        self._clients.pop(self._handler, None)
        self._connections.discard(self)
        self._handler.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A part of a request."""
        if self.is_idle:
            self._begin(self._request_s)
        self._handler.data_received(data)

    def eof_received(self) -> None:
        """The client sends no more."""
        self._handler.eof_received()

    def pause_writing(self) -> None:
        """The client does not read."""
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """The client has read."""
        self._handler.resume_writing()

    def refuse_bytes(self) -> None:
        """Nothing is held here."""

    def end_of_time(self) -> None:
        """The deadline has passed."""
        self.abort()

    def answering(self) -> None:
        """A request is there, and is being answered: how long that takes is ours."""
        self._begin(math.inf)

    def answered(self) -> None:
        """A request is answered, and the client may send another."""
        self._begin(_IDLE_S)
        self.is_idle = True
        self.is_known = True

    def _begin(self, seconds: float) -> None:
        self.is_idle = False
        self.since = self._clock()
        self.deadline = self.since + seconds


def _timed(clients: dict[asyncio.BaseProtocol, _HttpConnection]) -> Middleware:
    @web.middleware
    async def timed(request: web.Request, handler: Handler) -> web.StreamResponse:
        client = clients.get(request.protocol)
        if client is not None:
            client.answering()
        try:
            return await handler(request)
        finally:
            if client is not None:
                client.answered()

    return timed


def _not_found_handler(routes: Sequence[web.RouteDef]) -> Handler:
    known = sorted({f"{route.method} {route.path}" for route in routes})
    listing = "".join(f"  {line}\n" for line in known)

    async def missing(request: web.Request) -> web.Response:
        text = f"{request.method} {request.path} does not exist. The endpoints are:\n{listing}"
        return responses.of_text(text, HTTPStatus.NOT_FOUND)

    return missing
