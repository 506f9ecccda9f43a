# SPDX-License-Identifier: Apache-2.0
import errno
from itertools import product

import pytest
from nvdra_sim.configuration import node_config
from nvdra_sim.pci import bus as pci_bus
from nvdra_sim.pci.bus import PHASES, Bus, Phase, Step
from nvdra_sim.testing.passthrough_fixtures import PAIR_BEHIND_A_SWITCH

FIRST, SECOND, THIRD, FOURTH = "0000:3b:00.0", "0000:86:00.0", "0000:af:00.0", "0000:d8:00.0"
VFIO = "vfio-pci"


def booted(**sections: object) -> Bus:
    given = {"node": {"vfio": {"loaded": True}}, **sections}
    return pci_bus.at_boot(node_config.from_profile("t4", "node-0", given))


def unbound(bus: Bus, address: str) -> Bus:
    begun = pci_bus.step(bus, address, Step.REMOVE_BEGINS)
    return pci_bus.step(begun, address, Step.REMOVE_ENDS)


def bound(bus: Bus, address: str, driver: str) -> Bus:
    begun = pci_bus.step(bus, address, Step.PROBE_BEGINS, driver)
    return pci_bus.step(begun, address, Step.PROBE_SUCCEEDS)


def on_vfio(bus: Bus, address: str) -> Bus:
    return bound(pci_bus.with_override(unbound(bus, address), address, VFIO), address, VFIO)


@pytest.mark.parametrize(("phase", "step"), list(product(Phase, Step)))
def test_a_step_leads_to_its_phase_or_cannot_happen(phase: Phase, step: Step) -> None:
    bus = booted()
    state = pci_bus.FunctionState(phase, driver="nvidia", override="x")
    bus = pci_bus.with_state(bus, FIRST, state)
    if (phase, step) not in PHASES:
        with pytest.raises(KeyError):
            pci_bus.step(bus, FIRST, step, "nvidia")
        return
    after = pci_bus.step(bus, FIRST, step, "nvidia").states[FIRST]
    assert after.phase is PHASES[phase, step]
    assert (after.driver is None) == (after.phase in (Phase.ABSENT, Phase.DRIVERLESS)) or (
        step is Step.IS_FOUND
    )


def test_the_link_is_there_from_the_begin_of_a_probe_to_the_begin_of_a_remove() -> None:
    bus = booted()
    seen = [bus.states[FIRST].holder]
    for step in (Step.REMOVE_BEGINS, Step.REMOVE_ENDS, Step.PROBE_BEGINS, Step.PROBE_SUCCEEDS):
        bus = pci_bus.step(bus, FIRST, step, "nvidia")
        seen.append(bus.states[FIRST].holder)
    assert seen == ["nvidia", None, None, "nvidia", "nvidia"]


def test_binds_are_refused_without_a_match_and_to_what_has_a_driver() -> None:
    bus = booted()
    assert pci_bus.bind_refusal(bus, "nvidia", FIRST) == errno.EBUSY
    assert pci_bus.bind_refusal(bus, VFIO, FIRST) == errno.ENODEV
    assert pci_bus.bind_refusal(bus, "nvidia", "0000:77:00.0") == errno.ENODEV
    bus = pci_bus.with_override(unbound(bus, FIRST), FIRST, VFIO)
    assert pci_bus.bind_refusal(bus, "nvidia", FIRST) == errno.ENODEV
    assert pci_bus.bind_refusal(bus, VFIO, FIRST) == 0


def test_during_a_remove_a_bind_that_matches_nothing_is_refused_at_once() -> None:
    """Measured: `bind` of vfio-pci with a cleared override answers ENODEV while an unbind waits."""
    bus = pci_bus.step(on_vfio(booted(), FIRST), FIRST, Step.REMOVE_BEGINS)
    bus = pci_bus.with_override(bus, FIRST, "")
    assert pci_bus.bind_refusal(bus, VFIO, FIRST) == errno.ENODEV
    assert pci_bus.bind_refusal(bus, "nvidia", FIRST) == 0  # and waits for the lock


def test_the_smallest_free_number_goes_to_the_next_device() -> None:
    bus = on_vfio(on_vfio(booted(), FIRST), SECOND)
    assert [bus.states[each].vfio_number for each in (FIRST, SECOND)] == [0, 1]
    bus = unbound(unbound(bus, FIRST), SECOND)
    bus = bound(bound(bus, SECOND, VFIO), FIRST, VFIO)
    assert [bus.states[each].vfio_number for each in (FIRST, SECOND)] == [1, 0]


def test_a_device_that_is_left_keeps_its_number_and_its_group_until_the_end() -> None:
    bus = on_vfio(booted(), FIRST)
    group = next(each.group for each in bus.functions if each.address == FIRST)
    bus = pci_bus.step(bus, FIRST, Step.REMOVE_BEGINS)
    assert bus.states[FIRST].vfio_number == 0
    assert pci_bus.groups_of_vfio(bus) == {group}
    bus = pci_bus.step(bus, FIRST, Step.REMOVE_ENDS)
    assert bus.states[FIRST].vfio_number is None
    assert pci_bus.groups_of_vfio(bus) == frozenset()


def test_a_group_is_viable_without_native_drivers() -> None:
    bus = on_vfio(booted(**PAIR_BEHIND_A_SWITCH), THIRD)
    group = next(each.group for each in bus.functions if each.address == THIRD)
    assert group is not None
    assert len([each for each in bus.in_group(group) if each.is_bridge]) == 3
    assert not pci_bus.is_viable(bus, group)
    assert pci_bus.is_viable(unbound(bus, FOURTH), group)
    assert pci_bus.is_viable(on_vfio(bus, FOURTH), group)


def test_a_group_in_use_takes_no_native_driver_and_vfio_needs_a_group() -> None:
    bus = booted()
    assert pci_bus.probe_error(bus, "nvidia", FIRST, group_is_claimed=True) == errno.EBUSY
    assert pci_bus.probe_error(bus, VFIO, FIRST, group_is_claimed=True) == 0
    without = booted(node={"iommu": {"enabled": False}, "vfio": {"loaded": True}})
    assert pci_bus.probe_error(without, VFIO, FIRST, group_is_claimed=False) == errno.EINVAL


def test_a_function_that_is_found_again_has_no_override_and_its_native_driver() -> None:
    bus = unbound(on_vfio(booted(), FIRST), FIRST)
    bus = pci_bus.step(bus, FIRST, Step.LEAVES_BUS)
    assert bus.state(FIRST) is None
    bus = pci_bus.step(bus, FIRST, Step.IS_FOUND)
    assert bus.states[FIRST].override == ""
    function = bus.function(FIRST)
    assert function is not None
    assert pci_bus.candidate(bus, function) == "nvidia"
