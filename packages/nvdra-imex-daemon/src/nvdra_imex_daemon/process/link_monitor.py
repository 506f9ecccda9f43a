"""Looks now and then at the connections of this node's IMEX to the other members.

An IMEX is READY without any connection, so that its word says nothing of a peer of another version
or node list, or behind a closed port. One look asks the IMEX of every node, so that it is taken
more rarely the larger the domain, and it may hang.
Source: docs/reference/imex.md, "What is known of nvidia-imex".
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from nvdra_api.errors import DriverError
from nvdra_api.ids import NodeName
from nvdra_runtime.computedomain import imex_links
from nvdra_runtime.computedomain.imex_links import ImexLinks, UnreadableAnswerError
from nvdra_runtime.process import background_tasks
from nvdra_runtime.telemetry import logs

from nvdra_imex_daemon.process import query_interval

LOG = logs.logger(__name__)

_NO_ANSWER: Final = f"nvidia-imex-ctl -N gave no answer within {imex_links.NODES_TIMEOUT_S:.0f} s"


@dataclass(frozen=True, slots=True)
class LinkedMembers:
    """The members whose connections are looked at, by their hosts in IMEX's node list.

    Attributes:
        own_hosts: Our own name and address. Empty while our IMEX is not READY.
        others: The nodes of the other members that are ready, by name and by address.
        count: Number of nodes in IMEX's list that have a member.
    """

    own_hosts: Collection[str]
    others: Mapping[str, NodeName]
    count: int


class LinkMonitor:
    """Reports connections that were missing in two looks in a row, and when they are back.

    Attributes:
        links: What was reported last.
    """

    def __init__(
        self,
        query_nodes: Callable[[], Awaitable[bytes | None]],
        members: Callable[[], LinkedMembers],
        report: Callable[[ImexLinks], Awaitable[None]],
    ) -> None:
        """Create a monitor; `running` runs it.

        Args:
            query_nodes: Asks IMEX. Returns its answer; None if there was none in time.
            members: The members to look at, now.
            report: Gets the outcome of each look, changed or not. May raise a DriverError.
        """
        self._query_nodes = query_nodes
        self._members = members
        self._report = report
        self._last = imex_links.WELL
        self.links = imex_links.WELL

    @asynccontextmanager
    async def running(self) -> AsyncIterator["LinkMonitor"]:
        """Look at the connections for the block."""
        async with background_tasks.running(imex_links=self._run):
            yield self

    async def _run(self) -> None:
        while True:
            pause_s = query_interval.seconds_until_next_look(
                self._members().count,
                is_suspicious=self._last != self.links,
                random_fraction=random.random(),  # noqa: S311 - spreads load
            )
            await asyncio.sleep(pause_s)
            try:
                await self.look()
            except DriverError as error:
                LOG.v(2, "Cannot tell how the connections of nvidia-imex are", error=error)

    async def look(self) -> None:
        """Look once.

        Raises:
            DriverError: nvidia-imex-ctl cannot be run, or the outcome cannot be reported.
        """
        members = self._members()
        if not (members.own_hosts and members.others):
            now: ImexLinks | None = imex_links.WELL
        else:
            now = await self._ask(members)
        if now is None:
            return
        self.links, self._last = imex_links.lasting(self._last, now), now
        LOG.v(
            4, "Looked at the connections", now=dict(now.broken), reported=dict(self.links.broken)
        )
        await self._report(self.links)

    async def _ask(self, members: LinkedMembers) -> ImexLinks | None:
        """The connections; None if the answer says nothing of them."""
        output = await self._query_nodes()
        if output is None:
            return ImexLinks(failure=_NO_ANSWER)
        try:
            # An answer about 256 nodes has some megabytes.
            return await asyncio.to_thread(
                imex_links.read_answer, output, members.own_hosts, members.others
            )
        except UnreadableAnswerError as error:
            LOG.v(2, "Cannot read the connections of nvidia-imex", error=error)
            return None
