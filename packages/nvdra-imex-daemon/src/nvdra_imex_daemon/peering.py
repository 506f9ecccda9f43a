"""Members into IMEX's peers: by name, which stay while addresses change, or by address.

By name IMEX is told once of all the names there can be; a change of the hosts file and a signal are
enough. By address every change of the members needs another list and another IMEX.
Source: spec/compute-domain.md §§8.5, 8.6.
"""

from typing import Protocol

from nvdra_api.runtime.process.worker import Worker
from nvdra_api.runtime.telemetry import logs
from nvdra_api.types.errors import Reason, RetryableError

from nvdra_imex_daemon import peers
from nvdra_imex_daemon.entries import Entries, Key, Member
from nvdra_imex_daemon.imex_files import ImexFiles
from nvdra_imex_daemon.peers import Roster
from nvdra_imex_daemon.supervisor import Supervisor

LOG = logs.logger(__name__)


class Peering(Protocol):
    """One of the two ways."""

    async def apply(self, found: Entries, expected: int, index: int) -> Roster:
        """Make IMEX work with these members, starting it where it does not run.

        Args:
            found: Everybody's entries, ours among them.
            expected: How many nodes the domain is to have; 0 where nobody says it.
            index: Our own place.

        Raises:
            DriverError: `DaemonNotReady`: it cannot be told, or members are missing.
        """
        ...


class ByName:
    """Peers by DNS names that are made from their indexes."""

    def __init__(
        self, member: Member, files: ImexFiles, thread: Worker, key: Key, supervisor: Supervisor
    ) -> None:
        self._member = member
        self._files = files
        self._thread = thread
        self._key = key
        self._supervisor = supervisor
        self._index: int | None = None

    async def apply(self, found: Entries, expected: int, index: int) -> Roster:
        """Whoever is there; IMEX takes the names that resolve, so nobody is waited for."""
        del expected
        roster = peers.roster(found, self._member, self._key)
        is_changed = await self._thread.run(self._files.name_peers, roster.peers)
        if is_changed:
            LOG.v(1, "Named the peers", peers={p.index: p.ip for p in roster.peers})
        if self._index not in (None, index):
            self._supervisor.restart()  # it found out at its start which of the names it is
        elif is_changed:
            self._supervisor.reread()
        self._index = index
        self._supervisor.want()
        return roster


class ByAddress:
    """Peers by their addresses, once there are as many nodes as the domain asks for."""

    def __init__(
        self, member: Member, files: ImexFiles, thread: Worker, key: Key, supervisor: Supervisor
    ) -> None:
        self._member = member
        self._files = files
        self._thread = thread
        self._key = key
        self._supervisor = supervisor

    async def apply(self, found: Entries, expected: int, index: int) -> Roster:
        """All of them, in the order of the list, which is the same for every member."""
        del index
        roster = peers.roster(found, self._member, self._key)
        if len(found) != expected:
            raise RetryableError(
                Reason.DAEMON_NOT_READY,
                f"the ComputeDomain has {len(found)} of the {expected} nodes that its numNodes "
                "says; without DNS names IMEX starts with exactly these",
                "start as many pods on different nodes as numNodes says, or switch the gate "
                "IMEXDaemonsWithDNSNames on",
            )
        ips = peers.addresses(found, roster, self._key)
        if await self._thread.run(self._files.list_addresses, ips):
            LOG.v(1, "Listed the peers", addresses=ips)
            self._supervisor.restart()
        self._supervisor.want()
        return roster
