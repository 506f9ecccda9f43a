"""Pytest fixtures: a simulated node in a temporary directory.

Import the fixtures in a `conftest.py`. A node needs neither root nor devices: every GPU is visible,
every process may change it, and device nodes are a table; a test asks for something else through
the sections of the node file.
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

from nvdra_sim import config, driverroot, install
from nvdra_sim.description import NodeDescription

DEFAULTS: dict[str, dict[str, Any]] = {
    "node": {"visibility": "all", "privilege": "none"},
    "render": {"nodes": "table"},
}


@dataclass(frozen=True)
class SimulatedNode:
    """An installed node.

    Attributes:
        description: What it is.
        roots: Where its files are.
        environment: What a process needs to find its library and state.
    """

    description: NodeDescription
    roots: install.Roots
    environment: Mapping[str, str]

    @property
    def library(self) -> Path:
        """The node's `libnvidia-ml.so.1`."""
        directory = driverroot.library_directory(self.description)
        return self.roots.driver / directory / "libnvidia-ml.so.1"

    @property
    def smi(self) -> Path:
        """The node's `nvidia-smi`."""
        return self.roots.driver / driverroot.program_directory(self.description) / "nvidia-smi"

    @property
    def state(self) -> Path:
        """The node's state file."""
        return self.roots.driver / driverroot.state_path(self.description)

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs a program that finds this node's NVML. Output is text; a failure is not raised."""
        environment = {"PATH": os.defpath, **self.environment}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


MakeNode = Callable[..., SimulatedNode]


@contextmanager
def installed(
    profile: str, directory: Path, name: str = "node-0", **sections: dict[str, Any]
) -> Iterator[SimulatedNode]:
    """A node below `directory` while the block runs; `sections` are those of the node file."""
    merged = {key: {**DEFAULTS.get(key, {}), **value} for key, value in sections.items()}
    description = config.from_profile(profile, name, {**DEFAULTS, **merged})
    roots = install.Roots.below(directory)
    install.install(
        description,
        driver_root=roots.driver,
        proc_root=roots.proc,
        sys_root=roots.sys,
        dev_root=roots.dev,
    )
    try:
        environment = install.environment(roots.driver, description)
        yield SimulatedNode(description, roots, environment)
    finally:
        install.uninstall(driver_root=roots.driver)


@pytest.fixture
def sim_node(tmp_path: Path) -> Iterator[MakeNode]:
    """Makes nodes of the test's own: `sim_node("dgx-h100", name="a", driver={…})`."""
    with ExitStack() as stack:

        def make(profile: str, name: str = "node-0", **sections: dict[str, Any]) -> SimulatedNode:
            return stack.enter_context(installed(profile, tmp_path / name, name, **sections))

        yield make


@pytest.fixture(scope="session")
def standing_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeNode]:
    """Nodes that all tests share, one per profile: to look at, not to change."""
    with ExitStack() as stack:

        @cache
        def make(profile: str) -> SimulatedNode:
            return stack.enter_context(installed(profile, tmp_path_factory.mktemp(profile)))

        yield make
