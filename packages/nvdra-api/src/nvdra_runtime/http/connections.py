# SPDX-License-Identifier: Apache-2.0
"""The connections of one server: how many, how long, and how many bytes of requests.

Every pod of the cluster may connect. When there are too many connections, or too many bytes, the
client goes that has waited longest, and not the one that comes: a probe and an API server send
their request as soon as they are connected.
Source: docs/design.md, "Settled" (ports).
"""

import abc
import asyncio
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Final, Generic, TypeVar

from nvdra_runtime.process import open_files
from nvdra_runtime.telemetry import logs

LOG: Final = logs.logger(__name__)

_SWEEP_S: Final = 1.0
_LOG_INTERVAL_S: Final = 60.0


class Dropped(StrEnum):
    """Why a connection was closed that its client still wanted."""

    CONNECTIONS = "connections"
    """There were too many."""
    BYTES = "bytes"
    """There were too many bytes of requests that had not arrived completely."""
    OPEN_FILES = "open_files"
    """The process had too many open files."""
    TIME = "time"
    """The request did not arrive in its time."""


OnDropped = Callable[[str, str], None]
"""Called with the name of the server and a value of `Dropped`."""


class BoundedConnection(asyncio.Protocol, abc.ABC):
    """One connection: what its server has to know of it. Times are the loop's.

    Attributes:
        since: When it was accepted, or its request began, or its last request was answered.
        deadline: When it ends by itself.
        is_idle: Whether no byte of a request has arrived.
        is_known: Whether a request of it has been answered.
        held_bytes: Bytes of its request that wait for the rest. `Connections.hold` sets it.
        handshake: What waits for the end of the TLS handshake.
        transport: From the end of the handshake to the end of the connection.
    """

    def __init__(self, since: float, deadline: float) -> None:
        self.since = since
        self.deadline = deadline
        self.is_idle = True
        self.is_known = False
        self.held_bytes = 0
        self.handshake: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    @abc.abstractmethod
    def refuse_bytes(self) -> None:
        """Say that there are too many bytes, forget those of this request, and close."""

    @abc.abstractmethod
    def end_of_time(self) -> None:
        """Say that the deadline has passed, if a request is half received, and close."""


C = TypeVar("C", bound=BoundedConnection)


class Connections(Generic[C]):
    """All connections of one server."""

    def __init__(
        self, server: str, max_connections: int, max_bytes: int, on_dropped: OnDropped
    ) -> None:
        """Have no connection yet.

        Args:
            server: The server's name in the log and in metrics.
            max_connections: The most at a time, if the limit of open files allows as many.
            max_bytes: The most bytes of requests that have not arrived completely.
            on_dropped: Counts.
        """
        self._server = server
        self._max_connections = bound(max_connections, open_files.soft_limit())
        self._max_bytes = max_bytes
        self._on_dropped = on_dropped
        self._clients: set[C] = set()
        self._bytes = 0
        self._unlogged: Counter[str] = Counter()
        self._next_log = 0.0
        self._is_empty = asyncio.Event()

    def add(self, client: C) -> None:
        """A client has connected. Makes room for it if necessary."""
        while len(self._clients) >= self._max_connections:
            self.drop_one(Dropped.CONNECTIONS)
        self._clients.add(client)
        self._is_empty.clear()

    def discard(self, client: C) -> None:
        """A connection has ended."""
        self._clients.discard(client)
        self.hold(client, 0)
        if not self._clients:
            self._is_empty.set()

    async def wait_until_empty(self) -> None:
        """Wait for the end of the last connection."""
        if self._clients:
            await self._is_empty.wait()

    def clients(self) -> tuple[C, ...]:
        """Those that are open."""
        return tuple(self._clients)

    def drop_one(self, why: Dropped) -> bool:
        """Close the connection that has waited longest. False if there is none.

        As long as most have never sent a request, it is one of these: a flood of connections does
        not close those that API servers keep, which would lose the review that is on its way.
        """
        if not self._clients:
            return False
        unknown = [client for client in self._clients if not client.is_known]
        are_most = 2 * len(unknown) > len(self._clients)
        client = min(unknown if are_most else self._clients, key=_since)
        self.discard(client)
        self._count(why)
        client.abort()
        return True

    def hold(self, client: C, size: int) -> None:
        """So many bytes of a request of `client` wait for the rest of it."""
        self._bytes += size - client.held_bytes
        client.held_bytes = size
        while self._bytes > self._max_bytes:
            first = min((each for each in self._clients if each.held_bytes), key=_since)
            self.hold(first, 0)
            self._count(Dropped.BYTES)
            first.refuse_bytes()

    async def close_late(self) -> None:
        """Close those that are too slow or idle for too long, and log. Run until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.sweep(clock())

    def sweep(self, now: float) -> None:
        """Close those whose deadline has passed. Logs at most once a minute."""
        for client in [client for client in self._clients if client.deadline <= now]:
            if not client.is_idle:
                self._count(Dropped.TIME)
            client.end_of_time()
        self._log(now)

    def _count(self, why: Dropped) -> None:
        self._unlogged[why] += 1
        self._on_dropped(self._server, why)

    def _log(self, now: float) -> None:
        """One line a minute, as clients decide how often this happens."""
        if not self._unlogged or now < self._next_log:
            return
        LOG.warning(
            "Closed connections whose clients send too slowly, or that are too many",
            server=self._server,
            open=len(self._clients),
            max=self._max_connections,
            **{f"closed_for_{why}": count for why, count in sorted(self._unlogged.items())},
        )
        self._unlogged.clear()
        self._next_log = now + _LOG_INTERVAL_S


def bound(wanted: int, soft_limit: int) -> int:
    """How many connections there may be: half of the open files is for other things."""
    return min(wanted, soft_limit // 2)


def _since(client: BoundedConnection) -> float:
    return client.since
