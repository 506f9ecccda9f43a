# SPDX-License-Identifier: Apache-2.0
"""Which GPUs can be passed to a virtual machine, and what stands in the way of the others. Pure.

One reason for each GPU, the first one of `OBSTACLES`: those that a person has to remove with the
node empty come first.
"""

import enum
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from nvdra_api.ids import PciAddress

from nvdra_gpu_plugin.passthrough import bindings
from nvdra_gpu_plugin.passthrough.bindings import Holding
from nvdra_gpu_plugin.passthrough.pci_functions import NVIDIA, PciBus, PciFunction


class Obstacle(enum.StrEnum):
    """Why a GPU is not offered for passthrough. The values are for metrics and logs."""

    NO_IOMMU = "NoIommu"
    NO_GROUP = "NoIommuGroup"
    SHARED_GROUP = "SharedIommuGroup"
    VIRTUAL_FUNCTIONS = "VirtualFunctions"
    MIG = "Mig"
    NO_MODULE = "NoVfioModule"
    FOREIGN_DRIVER = "ForeignDriver"
    NO_DRIVER = "NoDriver"
    UNBINDING = "Unbinding"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a GPU is not offered.

    Attributes:
        obstacle: The reason.
        pci: The GPU.
        cause: What is the case, without the GPU; no final full stop.
        remedy: What to do about it; no final full stop.
    """

    obstacle: Obstacle
    pci: PciAddress
    cause: str
    remedy: str

    @property
    def message(self) -> str:
        """What is the case, with the GPU; no final full stop."""
        return f"GPU {self.pci} cannot be passed through: {self.cause}"


@dataclass(frozen=True, slots=True)
class Board:
    """A GPU with what belongs to it.

    Attributes:
        gpu: The GPU.
        companions: The further functions of its board, such as audio and USB. They change the
            driver with it.
        mates: The functions in the IOMMU groups of these that belong to something else, apart from
            bridges.
        holding: Who has the GPU.
        module: The module of the vfio driver that it needs; None if it cannot be loaded.
        refusal: Why it is not offered; None if it can be.
    """

    gpu: PciFunction
    companions: tuple[PciFunction, ...]
    mates: tuple[PciFunction, ...]
    holding: Holding
    module: str | None
    refusal: Refusal | None

    @property
    def is_isolated(self) -> bool:
        """Whether the IOMMU keeps everything else apart from it."""
        return self.gpu.group is not None and not self.mates

    @property
    def functions(self) -> tuple[PciFunction, ...]:
        """The GPU and its companions."""
        return (self.gpu, *self.companions)

    @property
    def drives_console(self) -> bool:
        """Whether the kernel shows its console on it. Then it cannot be taken from the host now."""
        return self.gpu.is_boot_display and self.gpu.has_framebuffer


class Facts(NamedTuple):
    """What is asked about one GPU.

    Attributes:
        board: The GPU, without its refusal.
        bus: The functions of the node.
        is_in_mig_mode: Whether it is in MIG mode, or has MIG devices, and stays so.
    """

    board: Board
    bus: PciBus
    is_in_mig_mode: bool


_Check = Callable[[Facts], bool]
_Text = Callable[[Facts], str]

_MIG: Final = "it is in MIG mode, or has MIG devices"
_MIG_REMEDY: Final = (
    "destroy its MIG devices and switch MIG mode off, or enable the gate DynamicMIG"
)

OBSTACLES: Final[Mapping[Obstacle, tuple[_Check, _Text, str]]] = MappingProxyType(
    {
        Obstacle.NO_IOMMU: (
            lambda facts: not facts.bus.has_iommu,
            lambda _: "the node has no IOMMU groups",
            "enable the IOMMU in the firmware (VT-d, AMD-Vi or SMMU) and in the kernel (on Intel, "
            "the boot option intel_iommu=on)",
        ),
        Obstacle.NO_GROUP: (
            lambda facts: facts.board.gpu.group is None,
            lambda _: "it is in no IOMMU group, though the node has some",
            "see in the kernel's log (DMAR, AMD-Vi or SMMU) why the IOMMU does not serve it",
        ),
        Obstacle.SHARED_GROUP: (
            lambda facts: bool(facts.board.mates),
            lambda facts: f"its IOMMU group {facts.board.gpu.group} has {_mates(facts.board)}, too",
            "enable ACS in the firmware, or use a slot behind another port of the PCIe switch",
        ),
        Obstacle.VIRTUAL_FUNCTIONS: (
            lambda facts: facts.board.gpu.virtual_functions > 0,
            lambda facts: f"it has {facts.board.gpu.virtual_functions} virtual functions",
            "remove its vGPUs, and write 0 to its file sriov_numvfs",
        ),
        Obstacle.MIG: (
            lambda facts: facts.is_in_mig_mode,
            lambda _: _MIG,
            _MIG_REMEDY,
        ),
        Obstacle.NO_MODULE: (
            lambda facts: facts.board.module is None,
            lambda _: "the kernel has no module that drives it for vfio",
            "install the module vfio-pci for the running kernel (for Grace, also "
            "nvgrace-gpu-vfio-pci), and check that the plugin sees the node's /lib/modules",
        ),
        Obstacle.FOREIGN_DRIVER: (
            lambda facts: facts.board.holding is Holding.FOREIGN,
            lambda facts: f"the driver {facts.board.gpu.driver} has it",
            "keep that driver from loading (modprobe.d), and give the GPU to the NVIDIA driver or "
            "to vfio-pci",
        ),
        Obstacle.UNBINDING: (
            lambda facts: facts.board.holding is Holding.UNBINDING,
            lambda _: "a driver is being unbound from it, and waits for processes that use it",
            "end the processes that use it; the kernel's log names some of them",
        ),
        Obstacle.NO_DRIVER: (
            lambda facts: facts.board.holding is Holding.FREE,
            lambda _: "no driver has it",
            "load the NVIDIA driver, or bind the GPU to it or to vfio-pci: nobody else is known to "
            "want it so",
        ),
    }
)
"""When a GPU is not offered: the check, what is the case, and what to do about it."""


def find(
    bus: PciBus,
    modules: Mapping[PciAddress, str | None],
    *,
    claimed: Collection[PciAddress] = (),
    in_mig_mode: Collection[PciAddress] = (),
) -> tuple[Board, ...]:
    """Find the GPUs of the node, in the order of their addresses.

    Args:
        bus: All functions of the node.
        modules: The module of each GPU's vfio driver; None if it cannot be loaded.
        claimed: The GPUs that claims have bound to vfio, or are about to. Whichever driver has them
            at the moment is of no matter.
        in_mig_mode: The GPUs that are in MIG mode, or have MIG devices, and stay so.
    """
    found = []
    for pci in sorted(bus.functions):
        gpu = bus.functions[pci]
        if not gpu.is_gpu:
            continue
        companions = _companions(gpu, bus)
        board = Board(
            gpu=gpu,
            companions=companions,
            mates=_mates_of((gpu, *companions), bus),
            holding=bindings.holding(gpu, bus, is_claimed=pci in claimed),
            module=modules.get(pci),
            refusal=None,
        )
        refusal = _refusal(Facts(board, bus, pci in in_mig_mode))
        found.append(Board(gpu, companions, board.mates, board.holding, board.module, refusal))
    return tuple(found)


def mig_refusal(pci: PciAddress) -> Refusal:
    """Why a GPU is not passed through that is divided by MIG. sysfs does not say whether it is."""
    return Refusal(Obstacle.MIG, pci, _MIG, _MIG_REMEDY)


def _refusal(facts: Facts) -> Refusal | None:
    for obstacle, (is_met, describe, remedy) in OBSTACLES.items():
        if is_met(facts):
            return Refusal(obstacle, facts.board.gpu.pci, describe(facts), remedy)
    return None


def _companions(gpu: PciFunction, bus: PciBus) -> tuple[PciFunction, ...]:
    """The further functions of a GPU's board.

    The kernel links audio, USB and UCSI functions to a GPU as its consumers (drivers/pci/quirks.c,
    `quirk_gpu_hda` and others). Functions of its slot belong to it, whatever they are.
    """
    return tuple(
        function
        for pci, function in sorted(bus.functions.items())
        if pci != gpu.pci
        and not function.is_gpu
        and function.physical_function is None
        and (pci in gpu.consumers or (function.slot == gpu.slot and function.vendor == NVIDIA))
    )


def _mates_of(own: Collection[PciFunction], bus: PciBus) -> tuple[PciFunction, ...]:
    groups = {function.group for function in own if function.group is not None}
    return tuple(
        function
        for _, function in sorted(bus.functions.items())
        if function.group in groups and not function.is_bridge and function not in own
    )


def _mates(board: Board) -> str:
    return ", ".join(
        f"{function.pci} ({function.driver or 'no driver'})" for function in board.mates
    )
