# SPDX-License-Identifier: Apache-2.0
"""A real API server with the CRDs of ComputeDomain and ComputeDomainClique."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from nvdra_testing.control_plane import domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.control_plane.controller import ControllerProcess
from nvdra_testing.control_plane.domain_installation import DriverInstallation
from nvdra_testing.polling import wait_until


@pytest.fixture(scope="module")
def server(shared_apiserver_with_crds: ApiServer) -> ApiServer:
    """The API server, without domains of other tests, for which controllers would work."""
    domain_objects.remove_all_domains(shared_apiserver_with_crds)
    return shared_apiserver_with_crds


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
