# SPDX-License-Identifier: Apache-2.0
"""The numbers in the device names of the node's GPUs: `gpu-<number>`.

A GPU's number is its minor number, unless a claim holds the GPU under another one: minor numbers
change with a reboot, most often because a GPU is missing since, and what a claim was given must be
the same GPU as long as it is held. A GPU whose minor number is in another GPU's name gets a number
that no GPU has as its minor number. Source: docs/decisions/gpu-plugin.md, "What if GPUs have
other minor numbers after a reboot?".
"""

import itertools
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from nvdra_api.ids import GpuUUID
from nvdra_runtime.node import files
from nvdra_runtime.telemetry import logs
from pydantic import BaseModel

LOG = logs.logger(__name__)

FIRST_FREE: Final = 32
"""NVIDIA's driver serves 32 GPUs at most, and gives them the minor numbers 0 … 31
(`NV_MAX_DEVICES` in nvlimits.h of the open kernel modules)."""

_NAME: Final = "gpu-numbers.json"

HeldNumbers = Callable[[], Mapping[GpuUUID, int]]
"""The numbers under which claims hold GPUs. It is called on any thread."""


class _Document(BaseModel):
    boot_id: str
    numbers: dict[GpuUUID, int]


class GpuNumbers:
    """The numbers of the node's GPUs. One that differs from the minor number lasts for the boot.

    Otherwise the name of a GPU that is allocated could become that of another one when the plugin
    restarts.
    """

    def __init__(self, held: HeldNumbers, plugin_dir: Path, boot_id: str) -> None:
        """Create it without reading.

        Args:
            held: What claims hold.
            plugin_dir: Where they are kept for the next process of this boot.
            boot_id: `Host.boot_id()`.
        """
        self._held = held
        self._path = plugin_dir / _NAME
        self._boot_id = boot_id
        self._changed: dict[GpuUUID, int] = {}
        self._kept: dict[GpuUUID, int] = {}
        self._lock = threading.Lock()

    def number(self, gpu: GpuUUID, minor: int) -> int:
        """The number of a GPU with this minor number. May be called on any thread."""
        held = self._held()
        with self._lock:
            found = held.get(gpu, self._changed.get(gpu, minor))
            others = {number for uuid, number in held.items() if uuid != gpu}
            others |= {number for uuid, number in self._changed.items() if uuid != gpu}
            if found in others:
                found = next(each for each in itertools.count(FIRST_FREE) if each not in others)
            if found != minor:
                self._changed[gpu] = found
            else:
                self._changed.pop(gpu, None)
            return found

    def read(self) -> None:
        """Read what the former process of this boot has kept. Blocks."""
        try:
            document = _Document.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            LOG.warning("Cannot read the GPUs' numbers", file=str(self._path), error=str(error))
            return
        if document.boot_id == self._boot_id:
            self._changed, self._kept = dict(document.numbers), document.numbers

    def keep(self) -> None:
        """Write the numbers to the disk if they have changed. Blocks.

        Without the file a restart may name GPUs anew that no claim holds, so it may fail.
        """
        with self._lock:
            numbers = dict(self._changed)
        if numbers == self._kept:
            return
        try:
            document = _Document(boot_id=self._boot_id, numbers=numbers)
            files.write_atomic(self._path, document.model_dump_json().encode())
        except OSError as error:
            LOG.warning("Cannot write the GPUs' numbers", file=str(self._path), error=str(error))
            return
        self._kept = numbers
        LOG.info(
            "GPUs have other numbers in their names than the driver has given them",
            **{
                "numbers": ", ".join(
                    f"{uuid}={number}" for uuid, number in sorted(numbers.items())
                ),
            },
        )


MINORS_ONLY: Final = GpuNumbers(dict, Path(), "")
"""The numbers of a node on which no claim holds a GPU: minor numbers."""
