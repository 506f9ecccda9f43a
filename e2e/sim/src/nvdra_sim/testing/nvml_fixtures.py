"""Pytest fixture: NVML with a simulated node in the process of the test.

It needs only a state file and the library. Import `nvml_on` in a `conftest.py`.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from nvdra_sim.configuration import node_config
from nvdra_sim.configuration.file_schema import API_VERSION
from nvdra_sim.native import nvml_library
from nvdra_sim.state_file import state

NODE = {"visibility": "all", "privilege": "none"}

NvmlOn = Callable[..., state.State]


@pytest.fixture
def nvml_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NvmlOn]:
    """Connects pynvml to a new node: `nvml_on("t4", initialize=False, driver={…})`.

    Sections are those of the node file. A node without a profile requires the section `gpus`. With
    `initialize=False`, the next init connects to the node. All sessions are shut down at the end.
    """
    # pynvml loads the library by its name, and gets the one that is already loaded.
    ctypes.CDLL(str(nvml_library.build()), mode=ctypes.RTLD_GLOBAL)
    numbers = itertools.count()

    def make(profile: str | None, initialize: bool = True, **sections: Any) -> state.State:
        shut_down()
        head = {"apiVersion": API_VERSION, "kind": "Node", "metadata": {"name": "node-0"}}
        sections["node"] = {**NODE, **sections.get("node", {})}
        node = node_config.load({**head, "profile": profile, **sections})
        made = state.create(tmp_path / f"state-{next(numbers)}.bin", node)
        monkeypatch.setenv("NVDRA_SIM_STATE", str(made.path))
        if initialize:
            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError as error:
                error.add_note(_circumstances(made))
                raise
        return made

    yield make
    shut_down()


def _circumstances(node: state.State) -> str:
    """What the library could not find, for a test that fails once in ten thousand times."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    mapped = sorted({line.split()[-1] for line in maps if "nvidia-ml" in line or ".bin" in line})
    opened = len(list(Path("/proc/self/fd").iterdir()))
    return (
        f"state file: {node.path}, there: {node.path.exists()}, "
        f"module loaded: {bool(node.snapshot().module_loaded)}, open files: {opened}, "
        f"mapped: {mapped}"
    )


def shut_down() -> None:
    """Shuts down all NVML sessions of this process."""
    try:
        while True:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError_Uninitialized:
        return
