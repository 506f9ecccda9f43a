# SPDX-License-Identifier: Apache-2.0
"""The capability files of MIG instances, which come and go with them.

The simulated NVML does the same when it creates or destroys an instance (capability_files.c).

Source: docs/reference/nvml-simulator.md §14.4.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from nvdra_sim.description import Gpu
from nvdra_sim.filesystem import procfs, trees
from nvdra_sim.state_file import layout

_POSSIBLE = [(id_, range(procfs.MIG_COMPUTE_INSTANCES)) for id_ in range(procfs.MIG_GPU_INSTANCES)]


def update(now: layout.NodeState, gpus: Iterable[Gpu], proc_root: Path | None) -> None:
    """Makes the files of the GPUs those of the state, as the kernel module does."""
    if proc_root is None or not proc_root.exists():
        return
    for gpu in gpus:
        minor, records = now.gpus[gpu.index].minor, now.tables[gpu.index].instances
        wanted = procfs.mig_capability_files(minor, _ids(records))
        former = _existing_paths(minor, proc_root)
        trees.remove([proc_root / path for path in former if path not in wanted])
        trees.write(wanted, proc_root)


def remove(now: layout.NodeState, gpus: Iterable[Gpu], proc_root: Path | None) -> None:
    """Removes the files of the GPUs."""
    if proc_root is None:
        return
    for gpu in gpus:
        former = _existing_paths(now.gpus[gpu.index].minor, proc_root)
        trees.remove([proc_root / path for path in former])


@functools.cache
def _possible_paths(minor: int) -> tuple[str, ...]:
    """What a GPU can have at most: 15 GPU instances of 8 compute instances, and directories."""
    return tuple(trees.relative_paths(procfs.mig_capability_files(minor, _POSSIBLE)))


def _existing_paths(minor: int, proc_root: Path) -> Iterator[str]:
    """Those of the GPU that exist, parents first: few of many, found with few looks."""
    root, missing = str(proc_root), set()
    for path in _possible_paths(minor):
        if path.rpartition("/")[0] in missing or not os.path.lexists(f"{root}/{path}"):
            missing.add(path)
        else:
            yield path


def _ids(records: Iterable[layout.GpuInstance]) -> Iterator[tuple[int, list[int]]]:
    for number, record in enumerate(records):
        if record.in_use:
            yield number, [place for place, each in enumerate(record.compute) if each.in_use]
