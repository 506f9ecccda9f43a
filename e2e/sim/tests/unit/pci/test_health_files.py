# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest
from nvdra_sim.configuration import node_config
from nvdra_sim.pci import bus as pci_bus
from nvdra_sim.pci import health_files
from nvdra_sim.pci.bus import Bus, Faults, FunctionState, Step

GPU = "0000:3b:00.0"
ON_VFIO = {"overrides": {"gpus": [{"index": 0, "bound_driver": "vfio-pci"}]}}


def booted(*, d3cold: bool = False, on_vfio: bool = True) -> Bus:
    sections = ON_VFIO if on_vfio else {}
    node = {"vfio": {"loaded": True, "d3cold": d3cold}}
    return pci_bus.at_boot(node_config.from_profile("t4", "node-0", {**sections, "node": node}))


def texts(bus: Bus, *, is_open: bool = False, **changes: object) -> dict[str, str]:
    function, state = bus.function(GPU), bus.states[GPU]
    assert function is not None
    changed: FunctionState = replace(state, **changes)  # type: ignore[arg-type]
    found = health_files.contents(function, changed, is_open=is_open)
    return {name: content.decode("latin-1").strip() for name, content in found.items()}


@pytest.mark.parametrize(
    ("d3cold", "on_vfio", "is_open", "expected"),
    [
        (False, False, False, "D0"),
        (True, False, False, "D0"),
        (False, True, False, "D3hot"),
        (True, True, False, "D3cold"),
        (True, True, True, "D0"),
    ],
)
def test_a_function_of_vfio_sleeps_while_no_process_has_it_open(
    *, d3cold: bool, on_vfio: bool, is_open: bool, expected: str
) -> None:
    found = texts(booted(d3cold=d3cold, on_vfio=on_vfio), is_open=is_open)
    assert found["power_state"] == expected
    status = "active" if expected == "D0" else "suspended"
    assert found["power/runtime_status"] == status


def test_a_gpu_that_sleeps_has_all_lanes_at_the_lowest_speed() -> None:
    asleep, awake = (texts(booted(), is_open=is_open) for is_open in (False, True))
    assert asleep["current_link_speed"] == "2.5 GT/s PCIe"
    assert awake["current_link_speed"] == asleep["max_link_speed"] == "8.0 GT/s PCIe"
    assert {each["current_link_width"] for each in (asleep, awake)} == {"16"}


def test_a_link_that_has_lost_lanes_and_one_that_does_not_answer() -> None:
    narrow = texts(booted(), is_open=True, faults=Faults(link_width=4))
    assert (narrow["current_link_width"], narrow["max_link_width"]) == ("4", "16")
    gone = texts(booted(), is_open=True, faults=Faults(config_reads_ff=True))
    assert {gone["current_link_width"], gone["max_link_width"]} == {"63"}
    assert {gone["current_link_speed"], gone["max_link_speed"]} == {"Unknown"}
    assert set(gone["config"]) == {"\xff"}


def test_errors_are_counted_by_kind_until_the_function_leaves_the_bus() -> None:
    bus = booted()
    found = texts(bus, fatal_errors=2, nonfatal_errors=1)
    fatal, nonfatal = (found[f"aer_dev_{kind}"].splitlines() for kind in ("fatal", "nonfatal"))
    assert (fatal[1], fatal[-1]) == ("DLP 2", "TOTAL_ERR_FATAL 2")
    assert (nonfatal[1], nonfatal[-1]) == ("DLP 1", "TOTAL_ERR_NONFATAL 1")
    counted = replace(bus.states[GPU], fatal_errors=2)
    bus = pci_bus.with_state(bus, GPU, counted)
    for step in (Step.REMOVE_BEGINS, Step.REMOVE_ENDS, Step.LEAVES_BUS, Step.IS_FOUND):
        assert bus.states[GPU].fatal_errors == (0 if step is Step.IS_FOUND else 2)
        bus = pci_bus.step(bus, GPU, step)
    assert bus.states[GPU].fatal_errors == 0
