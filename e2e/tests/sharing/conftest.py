# SPDX-License-Identifier: Apache-2.0
"""What tests of several files have in common."""

from collections.abc import Iterator

import pytest
from nvdra_testing.cluster import mps_daemons
from nvdra_testing.cluster.installation import Cluster


@pytest.fixture(scope="module")
def with_all_gates(cluster: Cluster, settings: list[str]) -> Iterator[Cluster]:
    """The cluster, while the driver does all that it can with single GPUs."""
    mps_daemons.install_all(cluster, *settings)
    yield cluster
    cluster.install(*settings)
