# SPDX-License-Identifier: Apache-2.0
"""In which form each GPU is offered: as a whole GPU or MIG devices, as a vfio device, or both.

Pure: it follows from what sysfs and NVML say, or have said, and from the claims' records.

| driver now | held by | counters kept | offered |
|---|---|---|---|
| NVIDIA | no claim | either | both; no vfio device if it cannot be passed, or is divided by MIG |
| NVIDIA | either | either | neither, if it does not work |
| NVIDIA | a claim of the GPU | yes | the same: the counters keep the vfio device from others |
| NVIDIA | a claim of the GPU | no | the GPU's form only |
| any | a claim of the vfio device | yes | both, the GPU as it was described before |
| any | a claim of the vfio device | no | the vfio device only |
| vfio | a claim, at the last look | | as if that claim had it: its GPU is about to be given back |
| vfio | no claim | either | the vfio device only, or nothing: the setting `passthrough.prebound` |
| any | a claim that cannot be undone | either | nothing |

Source: docs/reference/gpu-devices.md, "Mutual exclusion", where the reference publishes both until
a claim is prepared, and again both when the plugin starts.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from nvdra_api.ids import PciAddress

from nvdra_gpu_plugin.devices.inventory import Gpu, Inventory
from nvdra_gpu_plugin.devices.vfio_devices import VfioDevice


class Prebound(StrEnum):
    """What becomes of GPUs that a vfio driver has and no claim: the setting's values."""

    OFFER = "offer"
    """They are vfio devices, and stay on the vfio driver."""
    IGNORE = "ignore"
    """They belong to another program, such as libvirt."""


class Hold(StrEnum):
    """As what claims hold a GPU."""

    GPU = "gpu"
    """As a whole, a share of it, or MIG devices."""
    VFIO = "vfio"
    """As a vfio device, from the start of its preparation until it is undone."""
    UNDO_FAILED = "undo-failed"
    """As a vfio device that could not be given back to its former driver; this is repeated."""


class Withheld(StrEnum):
    """Why a GPU is not offered as a vfio device, for the log, `status` and metrics."""

    BOARD = "Board"
    """It cannot be passed to a virtual machine; the refusal of its board says why."""
    MIG = "Mig"
    """It is in MIG mode and stays so, or an administrator's instances are on it."""
    NOT_DESCRIBED = "NotDescribed"
    """NVML has not described it yet, so that it may be divided by MIG."""
    UNHEALTHY = "Unhealthy"
    """It does not work, and is not offered as a GPU, either."""
    PREBOUND = "Prebound"
    """Another program has bound it, as the setting says."""
    IN_USE = "InUse"
    """A claim has it in its other form, and the API server keeps no counters."""
    UNDO_FAILED = "UndoFailed"
    """A former claim of it cannot be undone."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A whole GPU as sysfs shows it.

    Attributes:
        device: What would be offered.
        is_on_vfio: Whether a vfio driver has it.
        is_claimed: Whether a claim had it as a vfio device when sysfs was read. What is read of the
            driver and what the records say may be of different moments.
        can_be_passed: Whether its board has no refusal.
    """

    device: VfioDevice
    is_on_vfio: bool
    can_be_passed: bool
    is_claimed: bool = False

    @property
    def is_prebound(self) -> bool:
        """Whether a vfio driver had it when sysfs was read, and no claim."""
        return self.is_on_vfio and not self.is_claimed


@dataclass(frozen=True, slots=True)
class Forms:
    """In which forms a GPU is offered.

    Attributes:
        pci: Its PCI address.
        gpu: For its form as a GPU, whole or by MIG; None if it is not offered so.
        vfio: Its form for virtual machines; None if it is not offered so.
        withheld: Why `vfio` is None; None if it is not, and for a GPU that sysfs does not show.
    """

    pci: PciAddress
    gpu: Gpu | None = None
    vfio: VfioDevice | None = None
    withheld: Withheld | None = None


def find(
    gpus: Iterable[Gpu],
    remembered: Mapping[PciAddress, Gpu],
    candidates: Iterable[Candidate],
    held: Mapping[PciAddress, Hold],
    *,
    keeps_counters: bool,
    prebound: Prebound,
    unhealthy: Container[PciAddress] = (),
) -> tuple[Forms, ...]:
    """The forms of each GPU, in the order of their addresses.

    Args:
        gpus: Those that NVML describes and that work.
        remembered: What NVML has said in this boot, with today's driver, of GPUs by PCI address.
        candidates: The GPUs in sysfs; none without the gate.
        held: The GPUs of claims, without those with admin access only.
        keeps_counters: Whether the API server keeps counters, which exclude one of the forms.
        prebound: What becomes of GPUs that were bound to vfio by others.
        unhealthy: GPUs that do not work, and are not among `gpus`.
    """
    described = {gpu.pci: gpu for gpu in gpus}
    in_sysfs = {candidate.device.pci: candidate for candidate in candidates}
    found = []
    for pci in sorted({*described, *in_sysfs}):
        gpu, candidate = described.get(pci), in_sysfs.get(pci)
        if candidate is None:
            found.append(Forms(pci, gpu))
            continue
        known = gpu or remembered.get(pci)
        hold = held.get(pci)
        device = with_parent(candidate.device, known)
        if hold is Hold.UNDO_FAILED:
            found.append(Forms(pci, withheld=Withheld.UNDO_FAILED))
        elif hold is Hold.VFIO or (candidate.is_on_vfio and candidate.is_claimed):
            found.append(Forms(pci, known if keeps_counters else None, device))
        elif candidate.is_on_vfio:
            withheld = _of_prebound(candidate, prebound)
            found.append(Forms(pci, None, None if withheld else device, withheld))
        else:
            is_used = hold is Hold.GPU and not keeps_counters
            withheld = _of_gpu(candidate, known, is_used=is_used, is_unhealthy=pci in unhealthy)
            found.append(Forms(pci, gpu, None if withheld else device, withheld))
    return tuple(found)


def inventory(forms: Iterable[Forms]) -> Inventory:
    """What is published of GPUs in these forms.

    It also has GPUs that NVML does not list now, and is for publishing only.
    """
    found = tuple(forms)
    return Inventory(
        tuple(each.gpu for each in found if each.gpu is not None),
        tuple(each.vfio for each in found if each.vfio is not None),
    )


def _of_prebound(candidate: Candidate, prebound: Prebound) -> Withheld | None:
    if prebound is Prebound.IGNORE:
        return Withheld.PREBOUND
    return None if candidate.can_be_passed else Withheld.BOARD


def _of_gpu(
    candidate: Candidate, known: Gpu | None, *, is_used: bool, is_unhealthy: bool
) -> Withheld | None:
    """Why a GPU that the NVIDIA driver has, or should have, is not a vfio device."""
    if not candidate.can_be_passed:
        return Withheld.BOARD
    if is_unhealthy:
        return Withheld.UNHEALTHY
    if known is None:
        return Withheld.NOT_DESCRIBED
    if not known.offers_whole:
        return Withheld.MIG
    return Withheld.IN_USE if is_used else None


def with_parent(device: VfioDevice, gpu: Gpu | None) -> VfioDevice:
    """The vfio device with what NVML says of its GPU, if that is known."""
    if gpu is None:
        return device
    return replace(device, parent_uuid=gpu.uuid, parent_product_name=gpu.product_name)
