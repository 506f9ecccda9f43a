# SPDX-License-Identifier: Apache-2.0
"""What the tests of a domain's members share."""

from collections.abc import Iterator

import pytest
from nvdra_testing.cluster import compute_domains
from nvdra_testing.cluster.installation import Cluster


@pytest.fixture
def no_controller(rack: Cluster) -> Iterator[None]:
    """The controller does not run at the beginning."""
    compute_domains.scale_controller(rack, 0)
    yield
    compute_domains.scale_controller(rack, 1)
