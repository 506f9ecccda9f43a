# SPDX-License-Identifier: Apache-2.0
"""What becomes of each GPU as a vfio device, and what stands in the way of those not offered. Pure.

It is what people are shown: in `status`, Events, metrics and `/readyz`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from nvdra_api.ids import PciAddress

from nvdra_gpu_plugin.devices.gpu_forms import Forms, Withheld
from nvdra_gpu_plugin.devices.vfio_devices import VfioDevice
from nvdra_gpu_plugin.passthrough.boards import Board, Obstacle
from nvdra_gpu_plugin.passthrough.vfio_discovery import Passthrough

NO_DRIVER: Final = "none"
"""What is shown for a GPU that no driver has."""


class Explanation(NamedTuple):
    """Why a GPU is not offered.

    Attributes:
        obstacle: A word for metrics: of `Obstacle` or `Withheld`.
        cause: What is the case, without the GPU; no final full stop.
        remedy: What to do about it; no final full stop. Empty if it goes by itself.
        is_told: Whether an Event and `/readyz` say it. Others are said elsewhere, or are usual.
    """

    obstacle: str
    cause: str
    remedy: str
    is_told: bool


@dataclass(frozen=True, slots=True)
class VfioOffer:
    """One GPU of the node.

    Attributes:
        device: Its vfio device, offered or not.
        driver: The driver that has it now, or `none`.
        mates: What else is in its IOMMU group, apart from bridges and its own functions.
        is_claimed: Whether a claim has bound it to vfio, or is about to.
        reason: Why it is not offered as a vfio device; None if it is.
    """

    device: VfioDevice
    driver: str
    mates: tuple[PciAddress, ...]
    is_claimed: bool
    reason: Explanation | None


_EXPLANATIONS: Final[Mapping[Withheld, Explanation]] = MappingProxyType(
    {
        Withheld.MIG: Explanation(
            Obstacle.MIG,
            "it is in MIG mode, and does not leave it now",
            "destroy the MIG instances that no claim has made",
            is_told=True,
        ),
        Withheld.NOT_DESCRIBED: Explanation(
            Withheld.NOT_DESCRIBED, "NVML has not described it yet", "", is_told=False
        ),
        Withheld.UNHEALTHY: Explanation(
            Withheld.UNHEALTHY,
            "it does not work as a GPU, either",
            "see what is said of the GPU",
            is_told=False,
        ),
        Withheld.PREBOUND: Explanation(
            Withheld.PREBOUND,
            "another program has bound it to vfio",
            "set --passthrough-prebound=offer if claims are to have such GPUs",
            is_told=False,
        ),
        Withheld.IN_USE: Explanation(
            Withheld.IN_USE,
            "a claim has it as a GPU, and the API server keeps no counters",
            "",
            is_told=False,
        ),
        Withheld.UNDO_FAILED: Explanation(
            Withheld.UNDO_FAILED,
            "what was done to it for an earlier claim cannot be undone yet",
            "see the claim that is left over",
            is_told=False,
        ),
    }
)
"""All but those of the board, which has its own."""


def find(forms: Iterable[Forms], passthrough: Passthrough) -> tuple[VfioOffer, ...]:
    """The GPUs that sysfs shows, in the order of their addresses.

    Args:
        forms: In which forms the GPUs are offered.
        passthrough: What the PCI bus says of them.
    """
    withheld = {each.pci: each.withheld for each in forms}
    return tuple(
        VfioOffer(
            device=candidate.device,
            driver=board.gpu.driver or NO_DRIVER,
            mates=tuple(mate.pci for mate in board.mates),
            is_claimed=candidate.is_claimed,
            reason=_reason(withheld.get(board.gpu.pci), board),
        )
        for board, candidate in zip(passthrough.boards, passthrough.candidates, strict=True)
    )


def texts(offers: Iterable[VfioOffer]) -> tuple[str, ...]:
    """What is told of GPUs that are not offered: one text for all with the same remedy."""
    gpus: dict[Explanation, list[PciAddress]] = {}
    for offer in offers:
        if offer.reason is not None and offer.reason.is_told:
            gpus.setdefault(offer.reason, []).append(offer.device.pci)
    causes: dict[tuple[str, str], list[str]] = {}
    for reason, addresses in gpus.items():
        named = f"GPU{'s' if len(addresses) > 1 else ''} {', '.join(addresses)}"
        text = f"{named} cannot be passed through: {reason.cause}"
        causes.setdefault((reason.obstacle, reason.remedy), []).append(text)
    return tuple(f"{' / '.join(found)}; {remedy}" for (_, remedy), found in causes.items())


def _reason(withheld: Withheld | None, board: Board) -> Explanation | None:
    if withheld is None:
        return None
    if withheld is Withheld.BOARD and board.refusal is not None:
        refusal = board.refusal
        return Explanation(refusal.obstacle, refusal.cause, refusal.remedy, is_told=True)
    return _EXPLANATIONS.get(withheld)
