# SPDX-License-Identifier: Apache-2.0
"""A real API server with the CRDs of ComputeDomains, and a rack of nodes for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.node import imex_daemons
from nvdra_testing.node.imex_daemons import Rack


@pytest.fixture(scope="session")
def server(shared_apiserver_with_crds: ApiServer) -> ApiServer:
    return shared_apiserver_with_crds


@pytest.fixture
def rack(server: ApiServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Rack]:
    """Nodes without IMEX. The test's parameter is the domain's spec."""
    with imex_daemons.create_rack(server, tmp_path, **getattr(request, "param", {})) as made:
        yield made
