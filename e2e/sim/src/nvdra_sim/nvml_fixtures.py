"""Pytest fixture: NVML in the test's own process, with a simulated node below it.

Needs no installation: one state file and the library. Import `nvml_on` in a `conftest.py`.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from nvdra_sim import config, library, state
from nvdra_sim.nodefile import API_VERSION

NODE = {"visibility": "all", "privilege": "none"}

NvmlOn = Callable[..., state.State]


@pytest.fixture
def nvml_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NvmlOn]:
    """Points pynvml at a new node: `nvml_on("t4", initialize=False, driver={…})`.

    Sections are those of the node file; a node without a profile has its `gpus` among them. A node
    that is not initialised is found by the next init. Every init of the test is undone at its end.
    """
    # pynvml asks for the library by its name, and gets the one that is loaded already.
    ctypes.CDLL(str(library.build()), mode=ctypes.RTLD_GLOBAL)
    numbers = itertools.count()

    def make(profile: str | None, initialize: bool = True, **sections: Any) -> state.State:
        shut_down()
        head = {"apiVersion": API_VERSION, "kind": "Node", "metadata": {"name": "node-0"}}
        sections["node"] = {**NODE, **sections.get("node", {})}
        node = config.load({**head, "profile": profile, **sections})
        made = state.create(tmp_path / f"state-{next(numbers)}.bin", node)
        monkeypatch.setenv("NVDRA_SIM_STATE", str(made.path))
        if initialize:
            pynvml.nvmlInit()
        return made

    yield make
    shut_down()


def shut_down() -> None:
    """Ends every session of this process, however often it was begun."""
    try:
        while True:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError_Uninitialized:
        return
