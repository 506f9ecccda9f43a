# SPDX-License-Identifier: Apache-2.0
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
    library = ctypes.CDLL(str(nvml_library.build()), mode=ctypes.RTLD_GLOBAL)
    numbers = itertools.count()

    def make(profile: str | None, initialize: bool = True, **sections: Any) -> state.State:
        shut_down(library)
        head = {"apiVersion": API_VERSION, "kind": "Node", "metadata": {"name": "node-0"}}
        sections["node"] = {**NODE, **sections.get("node", {})}
        node = node_config.load({**head, "profile": profile, **sections})
        made = state.create(tmp_path / f"state-{next(numbers)}.bin", node)
        monkeypatch.setenv("NVDRA_SIM_STATE", str(made.path))
        if initialize:
            pynvml.nvmlInit()
        return made

    yield make
    shut_down(library)


def shut_down(library: ctypes.CDLL) -> None:
    """Shuts down all NVML sessions of this process.

    Not with pynvml: it does not ask the library before its own first init, and a test that asks the
    library itself would leave its session to the next one.
    """
    while (code := library.nvmlShutdown()) != pynvml.NVML_ERROR_UNINITIALIZED:
        if code:
            raise pynvml.NVMLError(code)
