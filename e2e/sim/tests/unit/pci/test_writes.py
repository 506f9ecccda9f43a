# SPDX-License-Identifier: Apache-2.0
"""Writes on a node of a state file alone: no mount, no files, users of the kernel."""

import errno
from pathlib import Path

import pytest
from nvdra_sim import incidents
from nvdra_sim.configuration import node_config
from nvdra_sim.pci import writes
from nvdra_sim.pci.bus import Faults, Phase
from nvdra_sim.pci.machine import StateMachine
from nvdra_sim.pci.writes import Procedure, Wait
from nvdra_sim.state_file import layout, state

FIRST, SECOND = "0000:3b:00.0", "0000:86:00.0"
VFIO = "vfio-pci"
MAJORS = {"nvidia": 3990, "drm": 3991}
"""Numbers of no other node of this machine: an unbind waits for whoever has one of its own open."""


@pytest.fixture
def node(tmp_path: Path) -> state.State:
    sections = {"node": {"vfio": {"loaded": True}, "majors": MAJORS}}
    described = node_config.from_profile("t4", "node-0", sections)
    return state.create(tmp_path / "state.bin", described)


@pytest.fixture
def machine(node: state.State) -> StateMachine:
    return StateMachine(node)


def run(procedure: Procedure) -> int:
    """The error of a write that does not wait long."""
    while True:
        try:
            next(procedure)
        except StopIteration as end:
            return int(end.value)


def to_vfio(machine: StateMachine, address: str) -> None:
    assert run(writes.set_override(machine, address, b"vfio-pci\n")) == 0
    assert run(writes.unbind(machine, "nvidia", address)) == 0
    assert run(writes.bind(machine, VFIO, address)) == 0


def test_an_unbind_waits_for_a_client_in_the_kernel_and_nothing_else_does(
    machine: StateMachine, node: state.State
) -> None:
    gpu = node.gpu("0")
    incidents.set_kernel_client(node, gpu, uses=True)
    unbinding = writes.unbind(machine, "nvidia", FIRST)
    assert next(unbinding) is Wait.UNINTERRUPTIBLE
    assert machine.bus.states[FIRST].phase is Phase.UNBINDING
    assert node.snapshot().gpus[0].removing
    assert run(writes.unbind(machine, "nvidia", SECOND)) == 0
    assert run(writes.drivers_probe(machine, FIRST)) == 0  # the core still knows its driver
    binding = writes.bind(machine, "nvidia", FIRST)
    assert next(binding) is Wait.UNINTERRUPTIBLE
    incidents.set_kernel_client(node, gpu, uses=False)
    assert run(unbinding) == 0
    assert run(binding) == 0
    assert machine.bus.states[FIRST].phase is Phase.BOUND


def test_the_second_unbind_of_one_function_succeeds_without_effect(
    machine: StateMachine, node: state.State
) -> None:
    incidents.set_kernel_client(node, node.gpu("0"), uses=True)
    both = [writes.unbind(machine, "nvidia", FIRST) for _ in range(2)]
    for each in both:
        next(each)
    incidents.set_kernel_client(node, node.gpu("0"), uses=False)
    assert [run(each) for each in both] == [0, 0]
    assert run(writes.unbind(machine, "nvidia", FIRST)) == errno.ENODEV


def test_gpus_get_the_lowest_free_minor_in_the_order_of_binding(
    machine: StateMachine, node: state.State
) -> None:
    for address in (FIRST, SECOND):
        assert run(writes.unbind(machine, "nvidia", address)) == 0
    for address in (SECOND, FIRST):
        assert run(writes.bind(machine, "nvidia", address)) == 0
    minors = [int(record.minor) for record in node.snapshot().gpus[:4]]
    assert minors == [1, 0, 2, 3]
    kinds = [incidents.EVENT_NAMES[event.type] for event in node.events()]
    assert kinds == ["unbind", "unbind", "bind", "bind"]


def faulty(node: state.State, faults: Faults) -> None:
    incidents.set_pci_faults(node, FIRST, faults)


def test_a_bind_fails_as_a_fault_says(machine: StateMachine, node: state.State) -> None:
    assert run(writes.set_override(machine, FIRST, b"vfio-pci")) == 0
    assert run(writes.unbind(machine, "nvidia", FIRST)) == 0
    faulty(node, Faults(driver=VFIO, bind_errno=errno.EIO))
    assert run(writes.bind(machine, VFIO, FIRST)) == errno.EIO
    assert run(writes.drivers_probe(machine, FIRST)) == errno.EINVAL
    assert machine.bus.states[FIRST].phase is Phase.DRIVERLESS
    faulty(node, Faults(bind_is_lost=True))
    assert run(writes.bind(machine, VFIO, FIRST)) == 0
    assert machine.bus.states[FIRST].phase is Phase.DRIVERLESS
    faulty(node, Faults(driver="nvidia", bind_errno=errno.EIO))
    assert run(writes.bind(machine, VFIO, FIRST)) == 0


def test_slow_binds_and_unbinds_take_their_time(machine: StateMachine, node: state.State) -> None:
    faulty(node, Faults(bind_ms=150, unbind_ms=100))
    begin = machine.clock()
    assert run(writes.unbind(machine, "nvidia", FIRST)) == 0
    assert machine.clock() - begin >= 0.1
    begin = machine.clock()
    binding = writes.bind(machine, "nvidia", FIRST)
    next(binding)
    assert machine.bus.states[FIRST].holder == "nvidia"  # the link is there before it is done
    assert not node.snapshot().gpus[0].bound_to_nvidia
    assert run(binding) == 0
    assert machine.clock() - begin >= 0.15


def test_a_gpu_that_is_to_break_does_so_at_its_next_bind(
    machine: StateMachine, node: state.State
) -> None:
    incidents.break_at_bind(node, node.gpu("0"))
    to_vfio(machine, FIRST)
    assert node.snapshot().gpus[0].broken == layout.BROKEN_SOON
    assert run(writes.unbind(machine, VFIO, FIRST)) == 0
    assert run(writes.set_override(machine, FIRST, b"\n")) == 0
    assert run(writes.bind(machine, "nvidia", FIRST)) == 0
    assert node.snapshot().gpus[0].broken == layout.BROKEN_NOW


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"vfio-pci", "vfio-pci"),
        (b"any thing\n", "any thing"),
        (b"one\ntwo", "one"),
        (b"\n", ""),
        (b"\0", ""),
    ],
)
def test_an_override_is_the_text_up_to_its_first_line_end(
    machine: StateMachine, content: bytes, name: str
) -> None:
    assert run(writes.set_override(machine, FIRST, b"former")) == 0
    assert run(writes.set_override(machine, FIRST, content)) == 0
    assert machine.bus.states[FIRST].override == name
    assert machine.bus.states[FIRST].driver == "nvidia"


def test_a_dynamic_id_binds_all_free_functions_that_fit(machine: StateMachine) -> None:
    assert run(writes.unbind(machine, "nvidia", FIRST)) == 0
    assert run(writes.new_id(machine, VFIO, b"10de")) == errno.EINVAL
    assert run(writes.new_id(machine, VFIO, b"10de 1eb8\n")) == 0
    assert run(writes.new_id(machine, VFIO, b"10de 1eb8\n")) == errno.EEXIST
    assert machine.bus.states[FIRST].driver == VFIO
    assert machine.bus.states[SECOND].driver == "nvidia"
    assert run(writes.remove_id(machine, VFIO, b"10de 1eb8")) == 0
    assert run(writes.remove_id(machine, VFIO, b"10de 1eb8")) == errno.ENODEV
    assert machine.bus.states[FIRST].driver == VFIO


def test_removing_a_port_takes_what_is_below_along_until_a_rescan(machine: StateMachine) -> None:
    port = "0000:3a:01.0"
    assert run(writes.remove(machine, port, b"1\n")) == 0
    assert machine.bus.state(port) is None
    assert machine.bus.state(FIRST) is None
    assert machine.bus.state(SECOND) is not None
    assert run(writes.rescan(machine, b"1")) == 0
    drivers = [machine.bus.states[each].driver for each in (port, FIRST)]
    assert drivers == ["pcieport", "nvidia"]


def test_what_was_unplugged_is_not_found_by_a_rescan_and_what_was_drained_is(
    machine: StateMachine, node: state.State
) -> None:
    incidents.unplug(node, node.gpu("0"))
    incidents.drain(node, node.gpu("1"))
    assert run(writes.rescan(machine, b"1")) == 0
    assert machine.bus.state(FIRST) is None
    assert machine.bus.states[SECOND].driver == "nvidia"
    incidents.plug(node, node.gpu("0"))
    assert machine.bus.states[FIRST].driver == "nvidia"


@pytest.mark.parametrize(
    ("content", "error"), [(b"0\n", 0), (b"4", errno.ENOENT), (b"many", errno.EINVAL)]
)
def test_no_driver_makes_virtual_functions(content: bytes, error: int, tmp_path: Path) -> None:
    described = node_config.from_profile("dgx-h100", "node-0", {})
    machine = StateMachine(state.create(tmp_path / "state.bin", described))
    address = described.gpus[0].bus_id
    assert run(writes.set_virtual_functions(machine, address, content)) == error
    assert run(writes.set_virtual_functions(machine, address, b"1000")) == errno.ERANGE


def test_a_reset_takes_only_a_one(machine: StateMachine) -> None:
    assert run(writes.reset(machine, FIRST, b"1")) == 0
    assert run(writes.reset(machine, FIRST, b"0")) == errno.EINVAL


@pytest.fixture
def unloaded(tmp_path: Path) -> StateMachine:
    described = node_config.from_profile("t4", "node-0", {"node": {"majors": MAJORS}})
    return StateMachine(state.create(tmp_path / "unloaded.bin", described))


def test_a_driver_takes_what_waits_for_it_when_its_module_is_loaded(
    unloaded: StateMachine,
) -> None:
    assert run(writes.set_override(unloaded, FIRST, b"vfio-pci")) == 0
    assert run(writes.unbind(unloaded, "nvidia", FIRST)) == 0
    assert run(writes.drivers_probe(unloaded, FIRST)) == 0
    assert unloaded.bus.states[FIRST].driver is None
    assert run(writes.load_module(unloaded, "vfio-pci")) == 0
    assert unloaded.bus.states[FIRST].driver == VFIO
    assert run(writes.load_module(unloaded, "no-such-module")) == errno.ENOENT


def test_a_boot_forgets_overrides_and_modules(unloaded: StateMachine, tmp_path: Path) -> None:
    node = state.load(tmp_path / "unloaded.bin")
    assert run(writes.load_module(unloaded, "vfio-pci")) == 0
    to_vfio(unloaded, FIRST)
    incidents.reboot(node)
    assert unloaded.bus.states[FIRST].driver == "nvidia"
    assert unloaded.bus.states[FIRST].override == ""
    assert unloaded.bus.modules == frozenset()


def test_a_module_in_need_stays_and_a_removal_takes_its_needs_along(
    machine: StateMachine,
) -> None:
    assert run(writes.unload_module(machine, "vfio")) == errno.EWOULDBLOCK
    to_vfio(machine, FIRST)
    assert run(writes.remove_modules(machine, "vfio-pci")) == 0
    assert machine.bus.states[FIRST].driver is None
    assert machine.bus.states[FIRST].override == VFIO
    assert machine.bus.modules == {"iommufd", "vfio", "vfio_iommu_type1"}


def test_nvidia_takes_no_gpu_whose_override_names_another_driver(
    machine: StateMachine, node: state.State
) -> None:
    to_vfio(machine, FIRST)
    incidents.unload_driver(node)
    assert machine.bus.states[FIRST].driver == VFIO
    assert machine.bus.states[SECOND].driver is None
    assert "nvidia" not in machine.bus.drivers
    incidents.load_driver(node)
    assert machine.bus.states[FIRST].driver == VFIO
    assert machine.bus.states[SECOND].driver == "nvidia"
    assert [bool(record.bound_to_nvidia) for record in node.snapshot().gpus[:2]] == [False, True]
