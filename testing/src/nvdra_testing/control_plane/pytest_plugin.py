# SPDX-License-Identifier: Apache-2.0
"""One API server for all component tests of a worker process, as pytest fixtures.

An idle API server with its etcd needs 400 MiB and some percent of a core, so packages share it.
Tests use nodes and namespaces of their own. A controller acts on the ComputeDomains of all
namespaces, so each file of its tests begins with a server that has none.
"""

from collections.abc import Iterator

import pytest

from nvdra_testing.control_plane import apiserver, domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer


@pytest.fixture(scope="session")
def shared_apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A running API server."""
    with apiserver.run_apiserver(tmp_path_factory.mktemp("api")) as running:
        yield running


@pytest.fixture(scope="session")
def shared_apiserver_with_crds(shared_apiserver: ApiServer) -> ApiServer:
    """The same API server with the CRDs of ComputeDomain and ComputeDomainClique."""
    domain_objects.install_crds(shared_apiserver)
    return shared_apiserver
