"""A real API server for all tests, with the definitions of ComputeDomain and its clique."""

from collections.abc import Iterator

import apiserver
import domains
import pytest
from apiserver import ApiServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with apiserver.started(tmp_path_factory.mktemp("api")) as running:
        domains.define(running)
        yield running


@pytest.fixture
def team(server: ApiServer) -> str:
    """A namespace of users."""
    return domains.namespace(server)
