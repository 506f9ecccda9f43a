# SPDX-License-Identifier: Apache-2.0
"""The files that follow the PCI bus: plain sysfs, device nodes, the directories of GPUs in procfs.

They are a function of the bus. After a change, what is no longer in it goes first, as the links of
a driver go before anything else happens; then the rest is made that of the bus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvdra_sim.filesystem import device_nodes, procfs, sysfs, trees
from nvdra_sim.filesystem.trees import Directory, Tree
from nvdra_sim.pci.bus import NVIDIA_DRIVER, Bus, Phase
from nvdra_sim.state_file import layout, pci_records
from nvdra_sim.state_file.state import State

ADDRESS = "[0-9a-f]*:[0-9a-f][0-9a-f]:[0-9a-f][0-9a-f].[0-7]"
CHANGING = (
    (
        f"bus/pci/drivers/*/{ADDRESS}",
        "bus/pci/drivers/vfio-pci/*",
        "bus/pci/drivers/nvgrace_gpu_vfio_pci/*",
        "devices/pci*/**/driver",
        "devices/pci*/**/drm/*",
        "devices/pci*/**/vfio-dev/*",
        "devices/virtual/vfio/*/*",
        "class/vfio*/*",
        "module/vfio*",
        "module/nvgrace*",
        "module/iommufd",
    ),
    (
        "nvidia[0-9]*",
        "vfio/[0-9]*",
        "vfio/vfio",
        "vfio/devices/*",
        "dri/card[1-9]*",
        "dri/renderD*",
    ),
    ("driver/nvidia/gpus/*/*",),
)
"""The files that come and go below the roots of sysfs, device nodes and procfs."""


@dataclass(frozen=True)
class BusFiles:
    """The trees for one state of the bus, below the roots of the node."""

    sys: Tree
    dev: Tree
    proc: Tree


def of(bus: Bus, minors: Mapping[int, int]) -> BusFiles:
    """The files of a bus.

    Args:
        bus: The bus.
        minors: The index of each GPU, with the minor number that it has while nvidia has it.
    """
    bound = {
        gpu.index: minors[gpu.index]
        for gpu in bus.node.gpus
        if bus.states[gpu.bus_id].driver == NVIDIA_DRIVER
        and bus.states[gpu.bus_id].phase in (Phase.BOUND, Phase.UNBINDING)
    }
    return BusFiles(
        sys=sysfs.tree(bus.node, bus),
        dev=device_nodes.tree(bus.node, bus, minors),
        proc=procfs.bound_gpus_tree(bus.node, bound) if bus.has_nvidia else {},
    )


def of_state(state: State) -> BusFiles:
    """The files of the bus that a state file describes now."""
    now = state.snapshot()
    return of(pci_records.read(now, state.description()), minors_of(now, state))


def minors_of(now: layout.NodeState, state: State) -> dict[int, int]:
    """The minor number of each GPU."""
    return {gpu.index: int(now.gpus[gpu.index].minor) for gpu in state.description().gpus}


def follow(state: State, before: BusFiles, after: BusFiles) -> None:
    """Makes the files of an installed node those of `after`; does nothing for all others."""
    for root, former, wanted in (
        (state.sys_root, before.sys, after.sys),
        (state.proc_root, before.proc, after.proc),
        (state.dev_root, before.dev, after.dev),
    ):
        if root is not None and root.is_dir():
            _replace(root, former, wanted)


def settle(state: State, wanted: BusFiles) -> None:
    """Makes the files those of the bus, whatever a killed server or a boot without one has left."""
    roots = (state.sys_root, state.dev_root, state.proc_root)
    found = [_changing(root, globs) for root, globs in zip(roots, CHANGING, strict=True)]
    follow(state, BusFiles(*found), wanted)


def _changing(root: Path | None, globs: Sequence[str]) -> Tree:
    """What is there of the files that come and go; none of them is as it should be, for now."""
    if root is None:
        return {}
    paths = (path for pattern in globs for path in root.glob(pattern))
    return {str(path.relative_to(root)): Directory() for path in paths}


def remove(state: State) -> None:
    """Removes the files of the bus as it is now, before a node is uninstalled."""
    nothing = BusFiles({}, {}, {})
    follow(state, of_state(state), nothing)


def _replace(root: Path, former: Tree, wanted: Tree) -> None:
    changed = {path: entry for path, entry in wanted.items() if former.get(path) != entry}
    # Directories that still have something in them stay.
    gone = trees.relative_paths(former.keys() - wanted.keys())
    trees.remove([root / path for path in gone if path not in wanted])
    trees.write(changed, root)
