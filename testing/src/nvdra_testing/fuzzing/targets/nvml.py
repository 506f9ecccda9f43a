# SPDX-License-Identifier: Apache-2.0
"""The texts that NVML returns: the simulated library gives out the bytes of the case.

A case is a line for each text: its name, and its bytes in hexadecimal.
"""

import ctypes
import mmap
import os
from contextlib import suppress
from ctypes import Structure
from functools import cache
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from nvdra_gpu_plugin.devices.inventory import Gpu
from nvdra_gpu_plugin.driver.nvml_sessions import DriverVersions
from nvdra_gpu_plugin.hardware.discovery import Discovery
from nvdra_gpu_plugin.publishing import attributes
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.nvml import Nvml, NvmlError
from nvdra_sim.state_file import layout
from nvdra_sim.testing import node_fixtures

from nvdra_testing.fuzzing import documents, function_target

_GPU_TEXTS: Final = ("uuid", "name")
_DRIVER_TEXTS: Final = ("driver_version",)
_PROFILE: Final = "profile"
"""The name of the first profile of MIG devices."""


@st.composite
def _texts(draw: DrawFn) -> bytes:
    fields = (*_GPU_TEXTS, *_DRIVER_TEXTS, _PROFILE)
    chosen = draw(st.lists(st.sampled_from(fields), min_size=1, max_size=3, unique=True))
    return b"\n".join(f"{field} {draw(documents.names())[:95].hex()}".encode() for field in chosen)


class _Library:
    """The library of a simulated node in this process, and the texts that it gives out."""

    def __init__(self) -> None:
        self._node = node_fixtures.installed("dgx-a100", Path("nvml").absolute())
        node = self._node.__enter__()  # for as long as the process lives
        os.environ.update(node.environment)
        self.host = Host(proc=node.roots.proc, sys=node.roots.sys, driver_root=node.roots.driver)
        descriptor = os.open(node.state, os.O_RDWR)
        self._file = mmap.mmap(descriptor, 0)
        self.description: Any = layout.Description.from_buffer(
            self._file, layout.REGIONS["description"][0]
        )
        self._original = bytes(self.description)
        self.nvml = Nvml.load(node.library, lambda *_: None)

    def restore(self) -> None:
        ctypes.memmove(ctypes.addressof(self.description), self._original, len(self._original))

    def set(self, field: str, text: bytes) -> None:
        gpu = self.description.gpus[0]
        holder: Structure = self.description if field in _DRIVER_TEXTS else gpu
        if field == _PROFILE:
            holder, field = gpu.mig_profiles[0], "name"
        size = getattr(type(holder), field).size
        setattr(holder, field, text[: size - 1])


@cache
def _library() -> _Library:
    return _Library()


def nvml_texts(case: bytes) -> None:
    """A GPU is discovered and published; what is no valid text is refused, for this GPU alone."""
    library = _library()
    library.restore()
    for line in case.splitlines():
        field, _, text = line.decode().partition(" ")
        library.set(field, bytes.fromhex(text))
    nvml = library.nvml
    versions = DriverVersions("580.95.05", "13.0")
    with suppress(NvmlError):  # the session is not opened
        versions = DriverVersions(nvml.driver_version(), "13.0")
    with suppress(NvmlError, ValueError):  # the GPU has a fault
        found = Discovery(library.host, finds_partitions=True).describe(nvml, 0, versions)
        if found is not None:
            _published(found.gpu)


def _published(gpu: Gpu) -> None:
    """The GPU's attributes, as they are sent to the API server."""
    for attribute in attributes.whole_gpu(gpu).values():
        sent = attribute.model_dump_json(exclude_none=True).encode()
        assert len(sent) < 200, sent
    attributes.whole_gpu_capacity(gpu)


TARGETS: Final = (
    function_target.target(nvml_texts, _texts(), [b"name " + b"NVIDIA A100".hex().encode()]),
)
