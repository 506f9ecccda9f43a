# SPDX-License-Identifier: Apache-2.0
"""A real API server for all tests; for each a simulated node and the plugin's process on it."""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.node import passthrough_rig, plugin
from nvdra_testing.node import rig as rigs
from nvdra_testing.node.passthrough_rig import PassthroughRig
from nvdra_testing.node.rig import Rig


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sequences", type=int, default=100, help="how many the property test runs")
    parser.addoption("--sequences-seed", type=int, default=4, help="of the property test")


@pytest.fixture(scope="session")
def server(shared_apiserver: ApiServer) -> ApiServer:
    plugin.allow_admin_access(shared_apiserver)
    return shared_apiserver


@pytest_asyncio.fixture
async def rig(server: ApiServer, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """A node; the test's parameter is a profile, or a profile and sections of a node file."""
    parameter = getattr(request, "param", "dgx-h100")
    profile, sections = (parameter, {}) if isinstance(parameter, str) else parameter
    name = f"node-{uuid4().hex[:6]}"
    async with rigs.open_rig(server, name, profile, **sections) as rig:
        yield rig


@pytest_asyncio.fixture
async def vfio_rig(
    server: ApiServer, request: pytest.FixtureRequest
) -> AsyncIterator[PassthroughRig]:
    """A node whose GPUs can go to virtual machines; the parameter is as that of `rig`."""
    parameter = getattr(request, "param", "t4")
    profile, sections = (parameter, {}) if isinstance(parameter, str) else parameter
    name = f"node-{uuid4().hex[:6]}"
    async with passthrough_rig.open_rig(server, name, profile, **sections) as rig:
        yield rig
