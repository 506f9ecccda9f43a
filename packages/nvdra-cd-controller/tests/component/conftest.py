"""A real API server with the CRDs of ComputeDomain and ComputeDomainClique, for all tests."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from nvdra_testing.control_plane import apiserver, domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.control_plane.controller import ControllerProcess
from nvdra_testing.control_plane.domain_installation import DriverInstallation
from nvdra_testing.polling import wait_until


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with apiserver.run_apiserver(tmp_path_factory.mktemp("api")) as running:
        domain_objects.install_crds(running)
        yield running


@pytest.fixture
def team(server: ApiServer, tmp_path: Path) -> Iterator[str]:
    """A user namespace, which later controllers find empty."""
    name = domain_objects.create_namespace(server)
    yield name
    DriverInstallation(server, tmp_path, "", name).remove_domains_by_force()


@pytest.fixture
def world(server: ApiServer, team: str, tmp_path: Path) -> DriverInstallation:
    """An installation of the driver without a running controller."""
    return DriverInstallation(
        server, tmp_path, domain_objects.create_namespace(server, "nvdra"), team
    )


@pytest_asyncio.fixture
async def controlled(world: DriverInstallation) -> AsyncIterator[ControllerProcess]:
    """A controller that has synced its informers."""
    with world.run_controller() as one:
        await wait_until(one.is_ready)
        yield one
