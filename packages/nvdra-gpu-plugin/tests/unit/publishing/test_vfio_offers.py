# SPDX-License-Identifier: Apache-2.0
"""What people are told of GPUs that are not offered to virtual machines."""

import pytest
from nvdra_gpu_plugin.devices.gpu_forms import Candidate, Forms, Withheld
from nvdra_gpu_plugin.passthrough import boards
from nvdra_gpu_plugin.passthrough.pci_functions import PciBus, PciFunction
from nvdra_gpu_plugin.passthrough.vfio_discovery import Passthrough
from nvdra_gpu_plugin.publishing import vfio_offers
from nvdra_gpu_plugin.publishing.vfio_offers import VfioOffer
from nvdra_testing.hardware.gpus import vfio_h100

ADDRESSES = tuple(vfio_h100(number).pci for number in range(3))


def offers(
    *withheld: Withheld | None, group: int | None = None, driver: str | None = "nvidia"
) -> tuple[VfioOffer, ...]:
    """The offers of GPUs that are in groups of their own, or all in one."""
    functions = {
        pci: PciFunction(
            pci, 0x10DE, 0x2330, 0x030200, driver, group=number if group is None else group
        )
        for number, pci in enumerate(ADDRESSES[: len(withheld)])
    }
    found = boards.find(PciBus(functions, has_iommu=True), dict.fromkeys(functions, "vfio_pci"))
    candidates = [
        Candidate(vfio_h100(number), is_on_vfio=False, can_be_passed=board.refusal is None)
        for number, board in enumerate(found)
    ]
    forms = [Forms(pci, withheld=each) for pci, each in zip(functions, withheld, strict=True)]
    return vfio_offers.find(forms, Passthrough(found, tuple(candidates)))


def test_a_gpu_that_is_offered_has_no_reason() -> None:
    (offer,) = offers(None)
    assert (offer.driver, offer.mates, offer.reason) == ("nvidia", (), None)
    assert vfio_offers.texts([offer]) == ()


def test_the_reason_of_a_board_is_its_refusal() -> None:
    first, second = offers(Withheld.BOARD, Withheld.BOARD, group=17)
    assert first.mates == (second.device.pci,)
    assert first.reason is not None
    assert first.reason.obstacle == "SharedIommuGroup"
    one, other = ADDRESSES[:2]
    assert vfio_offers.texts([first, second]) == (
        f"GPU {one} cannot be passed through: its IOMMU group 17 has {other} (nvidia), too / "
        f"GPU {other} cannot be passed through: its IOMMU group 17 has {one} (nvidia), too; "
        "enable ACS in the firmware, or use a slot behind another port of the PCIe switch",
    )


def test_gpus_of_one_cause_are_told_together() -> None:
    found = offers(Withheld.BOARD, None, Withheld.BOARD, driver=None)
    assert [offer.driver for offer in found] == ["none", "none", "none"]
    (text,) = vfio_offers.texts(found)
    assert text.startswith(
        f"GPUs {ADDRESSES[0]}, {ADDRESSES[2]} cannot be passed through: no driver has it; load the"
    )


@pytest.mark.parametrize("withheld", [each for each in Withheld if each is not Withheld.BOARD])
def test_each_other_reason_is_shown_and_only_what_stays_is_told(withheld: Withheld) -> None:
    (offer,) = offers(withheld)
    assert offer.reason is not None
    assert offer.reason.obstacle == withheld
    assert offer.reason.cause
    assert bool(vfio_offers.texts([offer])) == (withheld is Withheld.MIG)
