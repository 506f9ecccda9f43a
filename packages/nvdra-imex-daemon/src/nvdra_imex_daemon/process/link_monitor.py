# SPDX-License-Identifier: Apache-2.0
"""Looks now and then at the connections of this node's IMEX to the other members.

An IMEX is READY without any connection, so that its word says nothing of a peer of another version
or node list, or behind a closed port. One look asks the IMEX of every node, so that it is taken
more rarely the larger the domain, and it may hang.
Source: docs/reference/imex.md, "What is known of nvidia-imex".
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from nvdra_api.errors import DriverError
from nvdra_runtime.computedomain import imex_links
from nvdra_runtime.computedomain.imex_links import DomainHosts, ImexLinks, UnreadableAnswerError
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.timeouts import wait_for_event
from nvdra_runtime.telemetry import logs

from nvdra_imex_daemon.process import query_interval

LOG = logs.logger(__name__)

_NO_ANSWER: Final = f"nvidia-imex-ctl -N gave no answer within {imex_links.NODES_TIMEOUT_S:.0f} s"


_SIGNAL_AGAIN_S: Final = 300.0
"""A signal restarts all connections, also those in use. If one did not end a connection to a
stranger, the next is as unlikely to, but it may have been lost."""


class LinkMonitor:
    """Reports connections that were missing in two looks in a row, and when they are back.

    Attributes:
        links: What was reported last.
    """

    def __init__(
        self,
        query_nodes: Callable[[], Awaitable[bytes | None]],
        hosts: Callable[[], DomainHosts],
        report: Callable[[ImexLinks], Awaitable[None]],
        end_connections: Callable[[], None],
    ) -> None:
        """Create a monitor; `running` runs it.

        Args:
            query_nodes: Asks IMEX. Returns its answer; None if there was none in time.
            hosts: The domain's hosts, now.
            report: Gets the outcome of each look, changed or not. May raise a DriverError.
            end_connections: Makes IMEX end all its connections, and connect to the hosts that its
                peers' names lead to now.
        """
        self._query_nodes = query_nodes
        self._hosts = hosts
        self._report = report
        self._end_connections = end_connections
        self._peer_left = asyncio.Event()
        self._signalled: dict[str, float] = {}
        self._has_had_peers = False
        self._last = imex_links.WELL
        self.links = imex_links.WELL

    def note_peer_left(self) -> None:
        """Look soon whether IMEX is still connected to a peer that has left."""
        self._has_had_peers = True
        self._peer_left.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["LinkMonitor"]:
        """Look at the connections for the block."""
        async with background_tasks.running(imex_links=self._run):
            yield self

    async def _run(self) -> None:
        while True:
            pause_s = query_interval.seconds_until_next_look(
                _node_count(self._hosts()),
                is_suspicious=self._last != self.links or bool(self._last.strangers),
                random_fraction=random.random(),  # noqa: S311 - spreads load
            )
            self._peer_left.clear()
            await wait_for_event(self._peer_left, pause_s)
            if self._peer_left.is_set():
                # Its IMEX says that it ends, or is silent: by then the connection is usually down.
                await asyncio.sleep(query_interval.SECOND_LOOK_S)
            try:
                await self.look()
            except DriverError as error:
                LOG.v(2, "Cannot tell how the connections of nvidia-imex are", error=error)

    async def look(self) -> None:
        """Look once.

        Raises:
            DriverError: nvidia-imex-ctl cannot be run, or the outcome cannot be reported.
        """
        hosts = self._hosts()
        self._has_had_peers |= bool(hosts.ready)
        if not (hosts.own and self._has_had_peers):
            now: ImexLinks | None = imex_links.WELL
        else:
            now = await self._ask(hosts)
        if now is None:
            return
        self._end_connections_to(now.strangers)
        self.links, self._last = imex_links.lasting(self._last, now), now
        LOG.v(
            4, "Looked at the connections", now=dict(now.broken), reported=dict(self.links.broken)
        )
        await self._report(self.links)

    def _end_connections_to(self, strangers: Mapping[str, str]) -> None:
        now = asyncio.get_running_loop().time()
        self._signalled = {host: at for host, at in self._signalled.items() if host in strangers}
        due = [
            host
            for host in strangers
            if now - self._signalled.get(host, -_SIGNAL_AGAIN_S) >= _SIGNAL_AGAIN_S
        ]
        if due:
            LOG.warning(
                "nvidia-imex is connected to hosts that are no members of the domain: it is "
                "signalled to end its connections",
                hosts=dict(strangers),
            )
            self._signalled |= dict.fromkeys(due, now)
            self._end_connections()

    async def _ask(self, hosts: DomainHosts) -> ImexLinks | None:
        """The connections; None if the answer says nothing of them."""
        output = await self._query_nodes()
        if output is None:
            return ImexLinks(failure=_NO_ANSWER)
        try:
            # An answer about 256 nodes has some megabytes.
            return await asyncio.to_thread(imex_links.read_answer, output, hosts)
        except UnreadableAnswerError as error:
            LOG.v(2, "Cannot read the connections of nvidia-imex", error=error)
            return None


def _node_count(hosts: DomainHosts) -> int:
    """How many nodes of IMEX's list have a member: each has a name and an address."""
    return len(hosts.listed) // 2
