# SPDX-License-Identifier: Apache-2.0
"""Daemons whose controller is away write the clique one after another, and all learn of all."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from nvdra_testing.control_plane import request_counts
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.control_plane.request_counts import RequestCounts
from nvdra_testing.node.imex_daemons import Rack

ANNOUNCED = "--clique-writer=controller"
NODES = tuple(f"node-{number}" for number in range(6))
CLIQUES = "computedomaincliques"
TURNS_S = 15 + 18 / 3
"""When the last turn is, of up to 18 daemons."""


@contextmanager
def counted(server: ApiServer) -> Iterator[list[RequestCounts]]:
    """The requests of the block, known at its end."""
    found: list[RequestCounts] = []
    before = request_counts.parse(server.text("/metrics"))
    yield found
    found.append(request_counts.parse(server.text("/metrics")).since(before))


@pytest.mark.soak
def test_daemons_that_begin_together_rarely_meet_when_they_write_for_themselves(
    rack: Rack, server: ApiServer
) -> None:
    with counted(server) as found:
        for node in NODES:
            rack.start_pod(node, ANNOUNCED, "--max-nodes-per-imex-domain=18")
        rack.wait_until(lambda: set(rack.entries()) == set(NODES), "all", TURNS_S + 30)
        rack.wait_joined(*NODES)
    (spent,) = found
    assert sorted(rack.indexes().values()) == list(range(len(NODES)))
    assert spent.writes(CLIQUES) <= 2 * len(NODES)
    assert spent.writes(CLIQUES, request_counts.CONFLICT) <= len(NODES) / 2
