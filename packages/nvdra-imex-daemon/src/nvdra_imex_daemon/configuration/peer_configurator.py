# SPDX-License-Identifier: Apache-2.0
"""Configures IMEX with its peers, by DNS names or by addresses.

With names, IMEX gets all possible names once; a change of the members needs only a change of the
hosts file, and a signal if a name has got an address at which a peer listens. With addresses, every
change of the members needs another list of peers and a restart of IMEX.
Source: docs/reference/imex.md, "DNS names", "IP addresses".
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from nvdra_api.errors import Reason, RetryableError
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs

from nvdra_imex_daemon.configuration import peers
from nvdra_imex_daemon.configuration.imex_files import ImexFiles
from nvdra_imex_daemon.configuration.peers import PeerList
from nvdra_imex_daemon.membership.entries import Entries, MemberIdentity, NodeField
from nvdra_imex_daemon.process.supervisor import Supervisor

LOG = logs.logger(__name__)


class PeerConfigurator(Protocol):
    """One of the two ways to configure IMEX."""

    async def apply(self, member_entries: Entries, expected_nodes: int, index: int) -> PeerList:
        """Configure IMEX with these members, and start it if it is not running.

        Args:
            member_entries: The entries of all members, including ours.
            expected_nodes: How many nodes the domain is to have; 0 if that is not known.
            index: Our own index.

        Raises:
            DriverError: `DaemonNotReady`: A file cannot be written, or members are missing.
        """
        ...


class PeersByName:
    """Configures peers by DNS names, which are made from their indexes."""

    def __init__(
        self,
        member: MemberIdentity,
        files: ImexFiles,
        thread: Worker,
        node_field: NodeField,
        supervisor: Supervisor,
        note_peer_left: Callable[[], None],
    ) -> None:
        """Create it.

        Args:
            member: Who we are.
            files: The files that IMEX reads.
            thread: The thread that writes them.
            node_field: The field of an entry that has the node's name.
            supervisor: Runs IMEX.
            note_peer_left: Called when a name does not lead to a peer's address any more.
        """
        self._member = member
        self._files = files
        self._thread = thread
        self._node_field = node_field
        self._supervisor = supervisor
        self._note_peer_left = note_peer_left
        self._index: int | None = None
        self._reachable: Mapping[int, str] = {}

    async def apply(self, member_entries: Entries, expected_nodes: int, index: int) -> PeerList:
        """Name the current peers. IMEX connects to those that are there, and waits for none.

        A signal makes IMEX end all its connections and make them again, so it is sent only when the
        address behind a name has changed to one at which a peer listens. Without it IMEX might not
        try again for minutes. One that returns to its address causes none. A peer that leaves
        causes one only if its connection is not down: that is looked for.
        """
        del expected_nodes
        peer_list = peers.from_entries(member_entries, self._member, self._node_field)
        has_changed = await self._thread.run(self._files.write_hosts, peer_list.peers)
        if has_changed:
            addresses = {peer.index: peer.ip for peer in peer_list.peers}
            LOG.v(1, "Named the peers", peers=addresses)
        before = self._reachable
        self._reachable = peers.reachable(before, peer_list.peers, index)
        if self._index not in (None, index):
            self._supervisor.restart()  # IMEX determines which name is its own at its start
        elif not self._reachable.items() <= before.items():
            self._supervisor.reresolve_peers()
        if not before.items() <= self._reachable.items():
            self._note_peer_left()
        self._index = index
        self._supervisor.start()
        return peer_list


class PeersByAddress:
    """Configures peers by their addresses, once the domain has as many nodes as it asks for."""

    def __init__(
        self,
        member: MemberIdentity,
        files: ImexFiles,
        thread: Worker,
        node_field: NodeField,
        supervisor: Supervisor,
    ) -> None:
        self._member = member
        self._files = files
        self._thread = thread
        self._node_field = node_field
        self._supervisor = supervisor

    async def apply(self, member_entries: Entries, expected_nodes: int, index: int) -> PeerList:
        """List all peers in the order of the entries, which is the same for every member."""
        del index
        peer_list = peers.from_entries(member_entries, self._member, self._node_field)
        if len(member_entries) != expected_nodes:
            raise RetryableError(
                Reason.DAEMON_NOT_READY,
                f"the ComputeDomain has {len(member_entries)} of the {expected_nodes} nodes in its "
                "numNodes; without DNS names IMEX starts with exactly that many",
                "start as many pods on different nodes as numNodes says, or enable the feature "
                "gate IMEXDaemonsWithDNSNames",
            )
        ips = peers.addresses(member_entries, peer_list, self._node_field)
        if await self._thread.run(self._files.write_addresses, ips):
            LOG.v(1, "Wrote the addresses of the peers", addresses=ips)
            self._supervisor.restart()
        self._supervisor.start()
        return peer_list
