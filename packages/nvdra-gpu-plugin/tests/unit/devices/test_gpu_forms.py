# SPDX-License-Identifier: Apache-2.0
"""In which forms a GPU is offered: the table of the module, line by line."""

import pytest
from nvdra_api.ids import PciAddress
from nvdra_gpu_plugin.devices import gpu_forms
from nvdra_gpu_plugin.devices.gpu_forms import Candidate, Forms, Hold, Prebound, Withheld
from nvdra_gpu_plugin.devices.inventory import Gpu, Inventory
from nvdra_testing.hardware.gpus import divisible, h100, in_mig_mode, vfio_h100

PCI = h100(0).pci
OFFERED = vfio_h100(0, parent_uuid="GPU-0", parent_product_name="NVIDIA H100 80GB HBM3")


def forms(
    *gpus: Gpu,
    remembered: Gpu | None = None,
    is_on_vfio: bool = False,
    can_be_passed: bool = True,
    hold: Hold | None = None,
    keeps_counters: bool = True,
    prebound: Prebound = Prebound.OFFER,
    is_unhealthy: bool = False,
) -> Forms:
    (found,) = gpu_forms.find(
        gpus,
        {} if remembered is None else {remembered.pci: remembered},
        [Candidate(vfio_h100(0), is_on_vfio=is_on_vfio, can_be_passed=can_be_passed)],
        {} if hold is None else {PCI: hold},
        keeps_counters=keeps_counters,
        prebound=prebound,
        unhealthy={PCI} if is_unhealthy else (),
    )
    return found


@pytest.mark.parametrize("keeps_counters", [True, False])
def test_a_free_gpu_is_offered_in_both_forms(keeps_counters: bool) -> None:
    assert forms(h100(0), keeps_counters=keeps_counters) == Forms(PCI, h100(0), OFFERED)


def test_a_gpu_that_cannot_be_passed_is_offered_as_before() -> None:
    found = forms(h100(0), can_be_passed=False)
    assert found == Forms(PCI, h100(0), None, Withheld.BOARD)


def test_a_gpu_that_a_claim_has_keeps_both_forms_where_counters_keep_them_apart() -> None:
    assert forms(h100(0), hold=Hold.GPU) == Forms(PCI, h100(0), OFFERED)


def test_without_counters_the_other_form_of_what_a_claim_has_is_withdrawn() -> None:
    assert forms(h100(0), hold=Hold.GPU, keeps_counters=False) == Forms(
        PCI, h100(0), None, Withheld.IN_USE
    )
    assert forms(
        remembered=h100(0), hold=Hold.VFIO, is_on_vfio=True, keeps_counters=False
    ) == Forms(PCI, None, OFFERED)


@pytest.mark.parametrize("is_on_vfio", [True, False])
@pytest.mark.parametrize("can_be_passed", [True, False])
def test_what_a_claim_has_as_vfio_device_stays_as_it_was_published_wherever_the_switch_is(
    is_on_vfio: bool, can_be_passed: bool
) -> None:
    found = forms(
        remembered=h100(0), hold=Hold.VFIO, is_on_vfio=is_on_vfio, can_be_passed=can_be_passed
    )
    assert found == forms(h100(0))


def test_a_gpu_that_was_bound_to_vfio_by_others_is_a_vfio_device_or_nothing() -> None:
    assert forms(is_on_vfio=True) == Forms(PCI, None, vfio_h100(0))
    assert forms(is_on_vfio=True, prebound=Prebound.IGNORE) == Forms(
        PCI, None, None, Withheld.PREBOUND
    )
    assert forms(is_on_vfio=True, can_be_passed=False).withheld is Withheld.BOARD


def test_what_is_remembered_of_a_gpu_that_was_bound_to_vfio_by_others_is_not_offered() -> None:
    assert forms(remembered=h100(0), is_on_vfio=True) == Forms(PCI, None, OFFERED)


def test_a_gpu_that_cannot_be_given_back_is_not_offered_at_all() -> None:
    for is_on_vfio in (True, False):
        assert forms(remembered=h100(0), is_on_vfio=is_on_vfio, hold=Hold.UNDO_FAILED) == Forms(
            PCI, withheld=Withheld.UNDO_FAILED
        )


@pytest.mark.parametrize("gpu", [in_mig_mode(0), in_mig_mode(0, (19, 0)), h100(0, kept_mode=True)])
def test_a_gpu_that_stays_in_mig_mode_is_no_vfio_device(gpu: Gpu) -> None:
    assert forms(gpu) == Forms(PCI, gpu, None, Withheld.MIG)


def test_a_gpu_whose_mode_follows_from_its_claims_is_a_vfio_device_too() -> None:
    gpu = divisible(0, (19, 0), is_mig_enabled=True)
    assert forms(gpu, hold=Hold.GPU) == Forms(PCI, gpu, OFFERED)


def test_a_gpu_that_nvml_has_not_described_in_this_boot_is_offered_when_it_has() -> None:
    assert forms() == Forms(PCI, None, None, Withheld.NOT_DESCRIBED)
    assert forms(remembered=h100(0)).vfio == OFFERED, "the slice is the same after a restart"


@pytest.mark.parametrize("hold", [None, Hold.GPU])
def test_a_gpu_that_does_not_work_is_offered_in_neither_form(hold: Hold | None) -> None:
    found = forms(remembered=h100(0), hold=hold, is_unhealthy=True)
    assert found == Forms(PCI, None, None, Withheld.UNHEALTHY)


def test_what_was_wrong_with_a_gpu_does_not_matter_while_a_claim_has_it_on_vfio() -> None:
    found = forms(remembered=h100(0), hold=Hold.VFIO, is_on_vfio=True, is_unhealthy=True)
    assert found == forms(h100(0))


def test_a_gpu_that_sysfs_does_not_show_is_offered_as_before() -> None:
    other = h100(1)
    found = gpu_forms.find(
        [other, h100(0)], {}, [], {}, keeps_counters=True, prebound=Prebound.OFFER
    )
    assert found == (Forms(PCI, h100(0)), Forms(other.pci, other))
    assert gpu_forms.inventory(found) == Inventory((h100(0), other))


def test_the_inventory_has_both_forms_by_address() -> None:
    pci = PciAddress("0000:01:00.0")
    found = [Forms(PCI, h100(0), OFFERED), Forms(pci, None, vfio_h100(1))]
    assert gpu_forms.inventory(found) == Inventory((h100(0),), (OFFERED, vfio_h100(1)))
