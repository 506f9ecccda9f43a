# SPDX-License-Identifier: Apache-2.0
"""Accepts the connections of an address, each of which counts from its first packet on.

asyncio's own servers do not show a connection before its TLS handshake is done, and write a
stack trace for each that they cannot accept.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final, Generic

from nvdra_runtime.http.connections import C, Connections, Dropped
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.background_tasks import BackgroundTasks
from nvdra_runtime.telemetry import logs

LOG: Final = logs.logger(__name__)

BACKLOG: Final = 1024
"""How many connections the kernel accepts meanwhile."""
RECEIVE_BUFFER_BYTES: Final = 64 * 1024
"""What the kernel receives for one connection before it is read, which is also the most that is
read at once. By itself the kernel goes up to 6 MiB, which counts as memory of the pod."""
HANDSHAKE_S: Final = 5.0
_TLS_END_S: Final = 2.0
_PAUSE_S: Final = 1.0
"""After a client could not be accepted, and none could be closed for it."""
_ACCEPTED_AT_ONCE: Final = 8
"""How many newcomers are accepted before those that are there already have their turn again."""

_NO_SUCH_FAMILY: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


@asynccontextmanager
async def accept(
    host: str | None,
    port: int,
    make: Callable[[], C],
    connections: Connections[C],
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[str, int]]:
    """Accept connections while the block runs. Yields host and port; port 0 selects a free one.

    Connections that are open at the end stay open.

    Args:
        host: The address to listen on; None for all.
        port: The port.
        make: Makes the protocol of a connection.
        connections: Bounds them. The protocol tells it when a connection has ended.
        context: TLS, if the server has it.

    Raises:
        OSError: The address cannot be used; the message names it.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    hosts = dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found)
    with _listening(hosts, port) as sockets:
        async with BackgroundTasks() as handshakes:
            acceptor = _Acceptor(make, connections, context, handshakes)
            async with background_tasks.running(late_connections=connections.close_late):
                for listening in sockets:
                    loop.add_reader(listening, acceptor.accept, listening)
                try:
                    name = sockets[0].getsockname()
                    yield name[0], name[1]
                finally:
                    for listening in sockets:
                        acceptor.stop(listening)
                    acceptor.cancel_handshakes()


class _Acceptor(Generic[C]):
    def __init__(
        self,
        make: Callable[[], C],
        connections: Connections[C],
        context: ssl.SSLContext | None,
        handshakes: BackgroundTasks,
    ) -> None:
        self._make = make
        self._connections = connections
        self._tls: dict[str, object] = (
            {}
            if context is None
            else {
                "ssl": context,
                "ssl_handshake_timeout": HANDSHAKE_S,
                "ssl_shutdown_timeout": _TLS_END_S,
            }
        )
        self._handshakes = handshakes
        self._not_begun: dict[C, socket.socket] = {}
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}

    def accept(self, listening: socket.socket) -> None:
        """Accept some of the connections that wait."""
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # too many open files, or no memory for another
                if not self._connections.drop_one(Dropped.OPEN_FILES):
                    self._pause(listening)
                return
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client = self._make()
            self._not_begun[client] = accepted
            client.handshake = self._handshakes.start_once(
                "handshake", partial(self._connect, client)
            )
            client.handshake.add_done_callback(partial(self._end, client))
            self._connections.add(client)

    def stop(self, listening: socket.socket) -> None:
        """Accept no more connections of this address."""
        asyncio.get_running_loop().remove_reader(listening)
        if pause := self._pauses.pop(listening, None):
            pause.cancel()

    def _pause(self, listening: socket.socket) -> None:
        """Leave clients to the kernel for a moment. The loop would find them again at once."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        self._pauses[listening] = loop.call_later(
            _PAUSE_S, loop.add_reader, listening, self.accept, listening
        )

    def cancel_handshakes(self) -> None:
        """Close those that have not finished theirs."""
        for client in self._connections.clients():
            if client.handshake is not None:
                client.handshake.cancel()

    async def _connect(self, client: C) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: client,
                self._not_begun.pop(client),
                **self._tls,  # type: ignore[arg-type]
            )
        except OSError as error:  # of TLS too: what clients do is theirs
            LOG.v(4, "A client did not finish its handshake", error=str(error))

    def _end(self, client: C, _task: object) -> None:
        """The handshake has ended, or was cancelled before it began."""
        client.handshake = None
        if client in self._not_begun:
            self._not_begun.pop(client).close()
        if client.transport is None:
            self._connections.discard(client)


@contextmanager
def _listening(hosts: Iterable[tuple[int, str]], port: int) -> Iterator[list[socket.socket]]:
    """A socket for each address. Those of a family that the node does not have are left out."""
    sockets: list[socket.socket] = []
    failure = OSError("the host has no address")
    try:
        for family, host in hosts:
            # The second family gets the port that the first has selected.
            free_or_same = sockets[0].getsockname()[1] if sockets else port
            try:
                sockets.append(_bind(family, (host, free_or_same)))
            except OSError as error:
                if error.errno not in _NO_SUCH_FAMILY:
                    raise
                failure = error
        if not sockets:
            raise failure
        yield sockets
    finally:
        for listening in sockets:
            listening.close()


def _bind(family: int, address: tuple[str, int]) -> socket.socket:
    listening = socket.create_server(address, family=family, backlog=BACKLOG)
    # Accepted connections have it from here.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES // 2)
    listening.setblocking(False)
    return listening
