# SPDX-License-Identifier: Apache-2.0
"""The NVIDIA container toolkit, the real one, and simulated nodes for it to look at."""

from pathlib import Path

import pytest
from nvdra_lab import environment, versions
from nvdra_lab.artifacts import binaries
from nvdra_lab.progress import Progress
from nvdra_sim.testing.node_fixtures import sim_node

__all__ = ["sim_node"]


@pytest.fixture(scope="session")
def nvidia_ctk() -> Path:
    """The toolkit's command, built if need be."""
    places = environment.read()
    return Path(binaries.ensure(places, versions.DEFAULT, Progress(), ["nvidia-ctk"])["nvidia-ctk"])
