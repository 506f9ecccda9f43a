"""A real API server for all tests, with the definitions of ComputeDomain and its clique."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import apiserver
import domains
import pytest
import pytest_asyncio
from apiserver import ApiServer
from cd_world import World
from controller import Controller
from waiting import until


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with apiserver.started(tmp_path_factory.mktemp("api")) as running:
        domains.define(running)
        yield running


@pytest.fixture
def team(server: ApiServer, tmp_path: Path) -> Iterator[str]:
    """A namespace of users; later controllers find nothing in it."""
    name = domains.namespace(server)
    yield name
    World(server, tmp_path, "", name).abandon()


@pytest.fixture
def world(server: ApiServer, team: str, tmp_path: Path) -> World:
    """An installation of the driver without a controller yet."""
    return World(server, tmp_path, domains.namespace(server, "nvdra"), team)


@pytest_asyncio.fixture
async def controlled(world: World) -> AsyncIterator[Controller]:
    """A controller that has seen everything."""
    with world.controlled() as one:
        await until(one.is_ready)
        yield one
