# SPDX-License-Identifier: Apache-2.0
"""What component tests stand on: an API server, a kubelet's root directory."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from nvdra_runtime.kube import client
from nvdra_testing.control_plane.apiserver import ApiServer


@pytest.fixture(scope="session")
def server(shared_apiserver: ApiServer) -> ApiServer:
    """One real API server for the whole run; tests use nodes and names of their own."""
    return shared_apiserver


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[client.Client]:
    """A client with the administrator's rights."""
    async with client.connect(client.KubeSettings(str(server.kubeconfig))) as connected:
        yield connected


@pytest.fixture
def kubelet_root() -> Iterator[Path]:
    """A directory with a path short enough for sockets, which pytest's own may not be."""
    root = Path(tempfile.mkdtemp(prefix="nvdra-"))
    yield root
    shutil.rmtree(root)


def soon(seconds: float = 5) -> float:
    """A deadline on the loop's clock."""
    return asyncio.get_running_loop().time() + seconds
