"""A real API server with the CRDs of ComputeDomains, and a rack of nodes for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from nvdra_testing.control_plane import apiserver, domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.node import imex_daemons
from nvdra_testing.node.imex_daemons import Rack


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with apiserver.run_apiserver(tmp_path_factory.mktemp("api")) as running:
        domain_objects.install_crds(running)
        yield running


@pytest.fixture
def rack(server: ApiServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Rack]:
    """Nodes without IMEX. The test's parameter is the domain's spec."""
    with imex_daemons.create_rack(server, tmp_path, **getattr(request, "param", {})) as made:
        yield made
