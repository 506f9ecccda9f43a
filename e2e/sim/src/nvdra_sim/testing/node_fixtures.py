# SPDX-License-Identifier: Apache-2.0
"""Pytest fixtures: a simulated node in a temporary directory.

Import the fixtures in a `conftest.py`. A node requires neither root nor devices: every GPU is
visible, every process may change it, and the device nodes are a table. Tests can change this with
sections of the node file.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nvdra_sim import installation
from nvdra_sim.configuration import node_config
from nvdra_sim.description import NodeDescription
from nvdra_sim.filesystem import driver_root

DEFAULTS: dict[str, dict[str, Any]] = {
    "node": {"visibility": "all", "privilege": "none"},
    "render": {"nodes": "table"},
}


@dataclass(frozen=True)
class SimulatedNode:
    """An installed node.

    Attributes:
        description: The description of the node.
        roots: The roots of its files.
        environment: The environment variables with which a process finds its library and state.
    """

    description: NodeDescription
    roots: installation.Roots
    environment: Mapping[str, str]

    @property
    def library(self) -> Path:
        """The node's `libnvidia-ml.so.1`."""
        directory = driver_root.library_directory(self.description)
        return self.roots.driver / directory / "libnvidia-ml.so.1"

    @property
    def smi(self) -> Path:
        """The node's `nvidia-smi`."""
        return self.roots.driver / driver_root.program_directory(self.description) / "nvidia-smi"

    @property
    def mps_control(self) -> Path:
        """The node's `nvidia-cuda-mps-control`."""
        return self.smi.with_name("nvidia-cuda-mps-control")

    @property
    def state(self) -> Path:
        """The node's state file."""
        return self.roots.driver / driver_root.state_path(self.description)

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs a program that uses this node's NVML. Output is text. Failures are not raised."""
        environment = {"PATH": os.defpath, **self.environment}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


MakeNode = Callable[..., SimulatedNode]


@contextmanager
def installed(
    profile: str, directory: Path, name: str = "node-0", **sections: dict[str, Any]
) -> Iterator[SimulatedNode]:
    """Installs a node below `directory` for the block. `sections` are those of the node file."""
    merged = {key: {**DEFAULTS.get(key, {}), **value} for key, value in sections.items()}
    description = node_config.from_profile(profile, name, {**DEFAULTS, **merged})
    roots = installation.Roots.below(directory)
    installation.install(
        description,
        driver_root=roots.driver,
        proc_root=roots.proc,
        sys_root=roots.sys,
        dev_root=roots.dev,
    )
    try:
        environment = installation.environment(roots.driver, description)
        yield SimulatedNode(description, roots, environment)
    finally:
        installation.uninstall(driver_root=roots.driver)


@pytest.fixture
def sim_node(tmp_path: Path) -> Iterator[MakeNode]:
    """Creates nodes for one test: `sim_node("dgx-h100", name="a", driver={…})`."""
    with ExitStack() as stack:

        def make(profile: str, name: str = "node-0", **sections: dict[str, Any]) -> SimulatedNode:
            return stack.enter_context(installed(profile, tmp_path / name, name, **sections))

        yield make


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeNode]:
    """Creates nodes that all tests share, one per profile. Tests must not change them."""
    with ExitStack() as stack:

        @cache
        def make(profile: str) -> SimulatedNode:
            return stack.enter_context(installed(profile, tmp_path_factory.mktemp(profile)))

        yield make
