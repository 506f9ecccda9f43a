# SPDX-License-Identifier: Apache-2.0
"""The simulated files of the driver are those that were recorded beside real boards."""

import re
from typing import Any

import pytest
from nvdra_sim.configuration import node_config
from nvdra_sim.description import NodeDescription
from nvdra_sim.filesystem import device_nodes, procfs
from nvdra_sim.filesystem.trees import File, Node, Tree

from e2e.hardware import node_files, recorded_boards

ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
OWNERS_CHOICE = {"NvLinkDisable", "RmProfilingAdminOnly"}
"""Parameters of the module that whoever runs the machine has set."""

NOT_SIMULATED = {"/proc/driver/nvidia/patches/README", "/proc/driver/nvidia/warnings/README"}


@pytest.fixture(params=recorded_boards.names_with_files())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def recorded(name: str) -> dict[str, Any]:
    return recorded_boards.files(name)


@pytest.fixture
def node(name: str) -> NodeDescription:
    sections = recorded_boards.node(recorded_boards.board(name))
    return node_config.from_profile(None, "node-0", sections)


def contents(tree: Tree) -> dict[str, str]:
    """The files below /proc, as they are recorded."""
    return {
        f"/proc/{ADDRESS.sub('<address>', path)}": node_files.hidden(entry.content.decode())
        for path, entry in tree.items()
        if isinstance(entry, File)
    }


def test_files_of_the_kernel_module_have_the_recorded_content(
    node: NodeDescription, recorded: dict[str, Any]
) -> None:
    simulated = contents(procfs.tree(node))
    expected = {path: without_details(recorded["proc"][path]) for path in recorded["proc"]}
    assert expected.keys() - simulated.keys() == NOT_SIMULATED
    # The recorded list of all possible MIG capabilities is cut.
    cut = "/proc/driver/nvidia-caps/mig-minors"
    assert simulated[cut].startswith(expected[cut])
    for path in expected.keys() - NOT_SIMULATED - {cut}:
        assert without_details(simulated[path]) == expected[path], path


def without_details(text: str) -> str:
    """A file without numbers of interrupts, who built the module, and parameters that are set."""
    text = re.sub(r"(?m)^(IRQ: \s+)\d+$", r"\1", text)
    text = re.sub(r"(?m)^(.*Release Build|GCC version:)  .*$", r"\1", text)
    return re.sub(rf"(?m)^({'|'.join(sorted(OWNERS_CHOICE))}): \d+$", r"\1", text)


def test_device_nodes_have_the_recorded_modes_and_minors(
    node: NodeDescription, recorded: dict[str, Any]
) -> None:
    simulated = {
        f"/dev/{path}": f"{entry.device.minor} {entry.mode:04o}"
        for path, entry in device_nodes.tree(node).items()
        if isinstance(entry, Node)
    }
    for path, text in recorded["dev"].items():
        kind, number, mode = text.split()
        if kind == "c":
            assert simulated[path] == f"{number.partition(':')[2]} {mode}", path
