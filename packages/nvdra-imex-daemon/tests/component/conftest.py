"""A real API server with the definitions of ComputeDomains, and a rack of nodes for each test."""

from collections.abc import Iterator
from pathlib import Path

import apiserver
import domains
import imexd
import pytest
from apiserver import ApiServer
from imexd import Rack


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with apiserver.started(tmp_path_factory.mktemp("api")) as running:
        domains.define(running)
        yield running


@pytest.fixture
def rack(server: ApiServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Rack]:
    """Nodes without any IMEX; the domain's spec is what the test's parameter says."""
    with imexd.rack(server, tmp_path, **getattr(request, "param", {})) as made:
        yield made
