# SPDX-License-Identifier: Apache-2.0
"""A simulated node whose sysfs is served, so that drivers can be changed by writes to its files.

It needs root, for the mount and for device nodes. Nodes of several test processes are on one
machine, and the server tells the users of a device by its number: each node has numbers of its own.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nvdra_sim import installation
from nvdra_sim.configuration import node_config
from nvdra_sim.description import NodeDescription
from nvdra_sim.filesystem import driver_root
from nvdra_sim.native import programs
from nvdra_sim.state_file import state
from nvdra_sim.sysfs_server import connection

START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 30.0
FIRST_MAJOR, MAJORS_PER_NODE, PLACES = 520, 4, 875

PAIR_BEHIND_A_SWITCH: dict[str, Any] = {
    "node": {"iommu": {"iommufd": False, "acs": False}, "vfio": {"loaded": True}},
    "overrides": {
        "gpus": [
            {
                "index": index,
                "pcie_root": "pci0000:ae",
                "bridges": ["0000:ae:01.0", "0000:ad:00.0", f"0000:ad:{port:02x}.0"],
            }
            for index, port in ((2, 8), (3, 16))
        ]
    },
}
"""Of the four boards of `t4`, the last two are behind a switch that does not isolate its ports."""


@dataclass(frozen=True)
class ServedNode:
    """A node with a server.

    Attributes:
        description: The node.
        roots: The roots of its plain files.
        sys: Its sysfs, as the server shows it.
        modules: What replaces `/lib/modules`.
        state_path: Its state file.
        environment: The variables with which a process finds its NVML.
        server: The process id of the server.
    """

    description: NodeDescription
    roots: installation.Roots
    sys: Path
    modules: Path
    state_path: Path
    environment: Mapping[str, str]
    server: int

    @property
    def state(self) -> state.State:
        """Its state file, opened."""
        return state.load(self.state_path)

    @property
    def vmm(self) -> tuple[str, ...]:
        """The command of the stand-in for a virtual machine's process."""
        roots = ("--sys", str(self.sys), "--dev", str(self.roots.dev))
        return (str(programs.vmm()), *roots)

    @property
    def persistenced_socket(self) -> Path:
        """Where the node's nvidia-persistenced listens."""
        return self.roots.driver / driver_root.PERSISTENCED_SOCKET

    @contextmanager
    def persistenced(self, *options: str) -> Iterator[int]:
        """Runs `nvidia-persistenced` for the block, which gets its process id."""
        directory = self.roots.driver / driver_root.program_directory(self.description)
        environment = {
            **self.environment,
            "NVDRA_SIM_PERSISTENCED": str(self.persistenced_socket),
        }
        command = (str(directory / "nvidia-persistenced"), *options)
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline().startswith(b"Started ")
                yield process.pid
            finally:
                process.terminate()
                assert process.wait(END_TIMEOUT_S) == 0

    def kmod(self, name: str) -> tuple[str, ...]:
        """The command `modprobe` or `rmmod`."""
        return ("env", f"NVDRA_SIM_SYS={self.sys}", str(programs.kmod(name)))

    def device(self, index: int) -> Path:
        """The directory of a GPU in sysfs."""
        return self.sys / "bus/pci/devices" / self.address(index)

    def address(self, index: int) -> str:
        """The PCI address of a GPU."""
        return self.description.gpus[index].bus_id

    def back_end(self) -> str:
        """The node as a back end of the tests that also run on a real kernel (tests/kernel)."""
        gpus = [{"address": gpu.bus_id, "native": "nvidia"} for gpu in self.description.gpus]
        board = {
            "first": gpus[0],
            "second": gpus[1],
            "pair": gpus[2:4],
            "bridge": self.description.gpus[2].bridges[-1],
            "composite": [],
            "gpus": gpus[:2],
        }
        values = {
            "sys_root": str(self.sys),
            "dev_root": str(self.roots.dev),
            "modules_root": str(self.modules),
            "board": board,
            "holder": self.vmm,
            "modprobe": self.kmod("modprobe"),
            "rmmod": self.kmod("rmmod"),
            "kernel_log": None,
            "proc_root": str(self.roots.proc),
        }
        return json.dumps(values, indent=1)


MakeServedNode = Callable[..., ServedNode]


@contextmanager
def served(profile: str, directory: Path, **sections: dict[str, Any]) -> Iterator[ServedNode]:
    """Installs a node below `directory` and serves its sysfs for the block.

    Args:
        profile: A node profile.
        directory: An empty directory.
        sections: Those of the node file; device nodes are real ones.
    """
    with _own_majors() as own:
        given = sections.get("node", {})
        fixed = {"visibility": "all", "privilege": "none"}
        node = {**fixed, **given, "majors": {**own, **given.get("majors", {})}}
        description = node_config.from_profile(profile, "node-0", {**sections, "node": node})
        with _installed(description, directory) as installed:
            yield installed


@contextmanager
def _installed(description: NodeDescription, directory: Path) -> Iterator[ServedNode]:
    roots, modules = installation.Roots.below(directory), directory / "modules"
    installation.install(
        description,
        driver_root=roots.driver,
        proc_root=roots.proc,
        sys_root=roots.sys,
        dev_root=roots.dev,
        modules_root=modules,
    )
    state_path = roots.driver / driver_root.state_path(description)
    try:
        with _server(directory / "mnt", state_path) as process:
            yield ServedNode(
                description=description,
                roots=roots,
                sys=directory / "mnt",
                modules=modules,
                state_path=state_path,
                environment=installation.environment(roots.driver, description),
                server=process.pid,
            )
    finally:
        installation.uninstall(driver_root=roots.driver)
        shutil.rmtree(modules, ignore_errors=True)


@pytest.fixture
def served_node(tmp_path: Path) -> Iterator[MakeServedNode]:
    """Creates nodes for one test: `served_node("t4", node={…})`."""
    numbers = itertools.count()
    with ExitStack() as stack:

        def make(profile: str, **sections: dict[str, Any]) -> ServedNode:
            directory = tmp_path / f"served-{next(numbers)}"
            directory.mkdir()
            return stack.enter_context(served(profile, directory, **sections))

        yield make


@contextmanager
def _server(mount: Path, state_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Runs a server. One that does not end in order is ended with all that wait for it."""
    command = [sys.executable, "-m", "nvdra_sim.sysfs_server.main", "--state", str(state_path)]
    process = subprocess.Popen([*command, str(mount)], stdout=subprocess.PIPE, text=True)
    try:
        _wait_for_line(process)
        yield process
        if process.poll() is None:  # unless the test has killed it
            if connection.number(mount) is not None:  # or asked it to end
                process.terminate()
            assert process.wait(END_TIMEOUT_S) == 0
    finally:
        if process.poll() is None:
            with suppress(OSError):  # so that the test's own failure is the one that is seen
                connection.abort(mount)
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _wait_for_line(process: subprocess.Popen[str]) -> None:
    killer = threading.Timer(START_TIMEOUT_S, process.kill)
    killer.start()
    try:
        line = process.stdout.readline() if process.stdout is not None else ""
    finally:
        killer.cancel()
    assert line.startswith("mounted "), f"the server of sysfs did not start: {line!r}"


@contextmanager
def _own_majors() -> Iterator[dict[str, int]]:
    """Numbers that no other node of this machine has, for the block.

    They are taken by the name of a socket, which nobody else can have as long as it is open.
    """
    start = os.getpid() % PLACES
    for place in (*range(start, PLACES), *range(start)):
        with socket.socket(socket.AF_UNIX) as taken:
            try:
                taken.bind(f"\0nvdra-sim-majors-{place}")
            except OSError:
                continue
            first = FIRST_MAJOR + place * MAJORS_PER_NODE
            names = ("nvidia", "drm", "vfio", "vfio-devices")
            yield {name: first + number for number, name in enumerate(names)}
            return
    raise AssertionError(f"{PLACES} nodes are served on this machine")
