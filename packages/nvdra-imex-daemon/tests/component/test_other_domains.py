# SPDX-License-Identifier: Apache-2.0
"""An address that is given again, to a daemon of another domain, while a member is paused."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.node import imex_daemons
from nvdra_testing.node.imex_daemons import Rack

TWO = ("node-a", "node-b")
CALLED_S = 70.0
"""The simulated IMEX tries a peer again after 15, 31 and 62 s."""
ENDED_S = 60.0
"""A look after the member has left, and a signal."""


@pytest.fixture
def other(server: ApiServer, tmp_path: Path) -> Iterator[Rack]:
    """Another tenant's domain of the same clique."""
    (tmp_path / "other").mkdir()
    with imex_daemons.create_rack(server, tmp_path / "other") as made:
        yield made


class GivenAgain:
    """A paused member of a domain, whose peer's address a daemon of another domain has got.

    Its nvidia-imex runs on: the daemon is slow, or cannot reach the API server. The peer joins
    first: it has index 0, as the other domain's daemon has. An IMEX refuses a call for a node of
    another index.
    """

    def __init__(self, rack: Rack, other: Rack) -> None:
        self.rack = rack
        rack.install_driver(*TWO)
        first = rack.start_pod(TWO[0])
        rack.wait_until(lambda: rack.are_ready(TWO[0]), "the peer to be Ready")
        self.paused = rack.start_pod(TWO[1])
        rack.wait_until(lambda: rack.are_ready(*TWO), "both to be Ready")
        rack.wait_until(lambda: rack.are_connected(first, self.paused), "both to be connected")
        self.indexes = rack.indexes()
        os.kill(self.paused.pid, signal.SIGSTOP)
        first.stop()
        other.install_driver("node-c")
        self.stranger = other.start_pod("node-c", ip=first.ip)
        other.wait_until(lambda: other.are_ready("node-c"), "the other domain to be Ready")

    def link(self) -> str:
        """What the paused member's IMEX says of its peer's place."""
        found = self.rack.imex_connections(self.paused, self.indexes["node-b"])
        return found.get(self.indexes["node-a"], "")

    def resume(self) -> None:
        os.kill(self.paused.pid, signal.SIGCONT)


def test_a_daemon_of_another_domain_with_a_peers_address_is_refused(
    rack: Rack, other: Rack
) -> None:
    given = GivenAgain(rack, other)
    rack.wait_until(lambda: given.link() == "NODE_MAP_MISMATCH", "a call of the address", CALLED_S)
    assert given.stranger.is_ready()
    given.resume()


def test_with_shared_names_a_connection_to_another_domain_is_ended(rack: Rack, other: Rack) -> None:
    rack.peer_names = other.peer_names = "shared"
    given = GivenAgain(rack, other)
    rack.wait_until(lambda: given.link() == "CONNECTED", "a connection to the other", CALLED_S)
    given.resume()
    rack.wait_until(lambda: len(given.paused.hosts_entries()) == 1, "its hosts file to be right")
    rack.wait_until(lambda: given.link() != "CONNECTED", "the connection to be ended", ENDED_S)
    assert "are no members of the domain" in given.paused.log()
