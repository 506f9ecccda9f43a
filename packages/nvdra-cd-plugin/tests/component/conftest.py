# SPDX-License-Identifier: Apache-2.0
"""A real API server with the CRDs; for each test a simulated node and the plugin."""

from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import pytest
import pytest_asyncio
from nvdra_testing.control_plane import domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.kubelet import kubelet_client
from nvdra_testing.node import domain_rig, plugin
from nvdra_testing.node.domain_rig import DomainRig


@pytest.fixture(scope="session")
def server(shared_apiserver_with_crds: ApiServer) -> ApiServer:
    return shared_apiserver_with_crds


@pytest_asyncio.fixture
async def rig(server: ApiServer, request: pytest.FixtureRequest) -> AsyncIterator[DomainRig]:
    """A node; the profile is gb200-nvl72, or what the test's parameter says."""
    profile = getattr(request, "param", "gb200-nvl72")
    name, namespace = f"node-{uuid4().hex[:6]}", domain_objects.create_namespace(server, "nvdra")
    clique = domain_rig.CLIQUE if profile == "gb200-nvl72" else ""
    # Sockets have at most 107 bytes of path: pytest's own directories are too long. In memory, for
    # on the disk every commit would wait for what else is being written, and a call has its time.
    with TemporaryDirectory(prefix="nvdra-", dir="/dev/shm") as directory, ExitStack() as stack:
        node = stack.enter_context(plugin.simulated_node(Path(directory), name, profile))
        plugin.create_node_object(server, name)
        async with kubelet_client.run_kubelet(node.kubelet) as kubelet:
            yield DomainRig(server, node, kubelet, stack, namespace=namespace, clique=clique)
