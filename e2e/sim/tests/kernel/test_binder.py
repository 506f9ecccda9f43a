# SPDX-License-Identifier: Apache-2.0
"""The GPU plugin's binder on a real kernel and on the simulated one.

Functions with native drivers of Linux stand for GPUs, except where the driver nvidia is needed:
that is the stand-in of `nvdra_sim.testing.real_kernel` in the guest.
"""

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import PciAddress
from nvdra_gpu_plugin.passthrough import bindings, holders, pci_functions, vfio_modules
from nvdra_gpu_plugin.passthrough.binder import Binder
from nvdra_gpu_plugin.passthrough.bindings import FunctionBinding
from nvdra_runtime.node.host import Host as NodeHost
from nvdra_sim.testing.passthrough.board import Function
from nvdra_sim.testing.passthrough.host import Host
from nvdra_sim.testing.passthrough.pci_files import CLEAR, NO_OVERRIDE, OK, VFIO
from nvdra_sim.testing.passthrough.processes import PATIENCE_S, wait_until

SHORT_S = 1.5
"""Longer than a write that does not block, shorter than a person's patience."""
NO_DRIVER = "nvdra-no-such-driver"

HOLD_NODE = """
import os, sys
try:
    os.open(sys.argv[1], os.O_RDWR)
except OSError:  # the simulated kernel has no driver for it
    os.open(sys.argv[1], os.O_PATH)
print("open", flush=True)
sys.stdin.read()
"""

Hold = Callable[[Path], subprocess.Popen[bytes]]


@pytest.fixture
def node(host: Host) -> NodeHost:
    """The directories of the kernel as the plugin has them."""
    back_end = host.back_end
    return NodeHost(back_end.proc_root, back_end.sys_root, back_end.dev_root)


@pytest.fixture
def binder(node: NodeHost) -> Binder:
    return Binder(node)


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Starts processes that have a device node open until the test ends."""
    started = []

    def hold_node(path: Path) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", HOLD_NODE, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        return process

    yield hold_node
    for process in started:
        process.kill()
        process.communicate()


def before(*functions: Function) -> list[FunctionBinding]:
    """What a claim writes down before it binds functions that are on their native drivers."""
    return [FunctionBinding(PciAddress(each.address), VFIO, each.native) for each in functions]


def deadline(seconds: float = PATIENCE_S) -> float:
    return time.monotonic() + seconds


def assert_as_before(host: Host, *functions: Function) -> None:
    for each in functions:
        assert host.pci.driver(each.address) == each.native
        assert host.pci.override(each.address) == NO_OVERRIDE


def assert_on_vfio(host: Host, *functions: Function) -> None:
    for each in functions:
        assert host.pci.driver(each.address) == VFIO
        assert host.pci.override(each.address) == VFIO


def test_a_function_goes_to_vfio_and_back(host: Host, node: NodeHost, binder: Binder) -> None:
    first = host.board.first
    for _ in range(2):
        nodes = binder.bind(before(first), deadline())
        assert nodes.group == host.group_node(first)
        assert nodes.device is None, "a kernel without such nodes, though it lists vfioN"
        assert host.pci.vfio_name(first.address) is not None
        assert_on_vfio(host, first)
        binder.check_at_rest(before(first))
        assert host.is_viable(first)
        assert binder.bind(before(first), deadline()) == nodes, "there already"
        assert binder.give_back(before(first), deadline()) == {first.address: first.native}
        assert_as_before(host, first)
        assert binder.give_back(before(first), deadline()) == {first.address: first.native}
    assert binder.pending() == ()


def test_functions_of_one_group_go_together(host: Host, binder: Binder) -> None:
    binder.bind(before(*host.board.pair), deadline())
    assert_on_vfio(host, *host.board.pair)
    assert host.is_viable(host.board.pair[0])
    binder.give_back(before(*host.board.pair), deadline())
    assert_as_before(host, *host.board.pair)


def test_a_group_with_a_driver_of_the_host_is_not_viable(host: Host, binder: Binder) -> None:
    """A1.7: a bridge in the group does not matter."""
    first, second = host.board.pair
    with pytest.raises(RetryableError, match=rf"not viable: {second.address}") as raised:
        binder.bind(before(first), deadline())
    assert raised.value.reason is Reason.VFIO_BIND_FAILED
    assert host.is_viable(first) is False
    binder.give_back(before(first), deadline())
    assert_as_before(host, first, second)


def test_nothing_is_unbound_from_a_driver_that_nobody_wrote_down(
    host: Host, binder: Binder
) -> None:
    first, second = host.board.first, host.board.second
    board = [*before(first), FunctionBinding(PciAddress(second.address), VFIO, NO_DRIVER)]
    with pytest.raises(RetryableError, match=f"another driver than before has it: {second.native}"):
        binder.bind(board, deadline())
    assert_as_before(host, first, second)


def interruptions(host: Host, function: Function) -> Sequence[Callable[[], object]]:
    """The writes of a bind, one by one."""
    return (
        lambda: host.pci.set_override(function.address, VFIO),
        lambda: host.pci.unbind(function.native, function.address),
        lambda: host.pci.bind(VFIO, function.address),
    )


@pytest.mark.parametrize("writes", range(4))
def test_a_bind_that_was_interrupted_goes_on_or_back(
    host: Host, binder: Binder, writes: int
) -> None:
    first = host.board.first
    for write in interruptions(host, first)[:writes]:
        assert write() == OK
    binder.bind(before(first), deadline())
    assert_on_vfio(host, first)
    host.restore()
    for write in interruptions(host, first)[:writes]:
        assert write() == OK
    binder.give_back(before(first), deadline())
    assert_as_before(host, first)


@pytest.mark.parametrize("writes", range(3))
def test_a_return_that_was_interrupted_goes_on(host: Host, binder: Binder, writes: int) -> None:
    first = host.board.first
    binder.bind(before(first), deadline())
    done: tuple[Callable[[], object], ...] = (
        lambda: host.pci.set_override(first.address, CLEAR),
        lambda: host.pci.unbind(VFIO, first.address),
    )
    for write in done[:writes]:
        assert write() == OK
    binder.give_back(before(first), deadline())
    assert_as_before(host, first)


def test_a_former_override_is_restored(host: Host, binder: Binder) -> None:
    first = host.board.first
    assert host.pci.set_override(first.address, NO_DRIVER) == OK
    board = [FunctionBinding(PciAddress(first.address), VFIO, first.native, NO_DRIVER)]
    binder.bind(board, deadline())
    binder.give_back(board, deadline())
    assert host.pci.driver(first.address) == first.native
    assert host.pci.override(first.address) == NO_DRIVER


def test_a_virtual_machine_that_is_left_behind_blocks_its_own_function_only(
    host: Host, node: NodeHost, binder: Binder
) -> None:
    """A1.1-3: the write is left alone; no bind follows, by a later plugin neither."""
    first, second = host.board.first, host.board.second
    binder.bind(before(first), deadline())
    holder = host.hold_device(first)
    assert holder.opened.failed is None
    with pytest.raises(RetryableError, match="has not returned") as raised:
        binder.give_back(before(first), deadline(SHORT_S))
    assert raised.value.reason is Reason.VFIO_DEVICE_BUSY
    (pending,) = binder.pending()
    assert (pending.action.pci, pending.action.driver) == (first.address, VFIO)
    assert pending.since < time.monotonic()
    successor = Binder(node)
    for each in (binder, successor):
        with pytest.raises(RetryableError, match="still in use") as raised:
            each.check_at_rest(before(first))
        assert raised.value.reason is Reason.VFIO_DEVICE_BUSY
        each.check_at_rest(before(second))
        with pytest.raises(RetryableError) as raised:
            each.give_back(before(first), deadline(SHORT_S))
        assert raised.value.reason is Reason.VFIO_DEVICE_BUSY
        with pytest.raises(RetryableError) as raised:
            each.bind(before(first), deadline(SHORT_S))
        assert raised.value.reason is Reason.VFIO_DEVICE_BUSY
    assert host.pci.driver(first.address) is None
    binder.bind(before(second), deadline())
    binder.give_back(before(second), deadline())
    holder.kill()
    wait_until(lambda: binder.pending() == (), "the write has returned")
    successor.give_back(before(first), deadline())
    assert_as_before(host, first)


def test_the_process_of_a_virtual_machine_is_found_before(
    host: Host, node: NodeHost, binder: Binder
) -> None:
    first, second = host.board.first, host.board.second
    binder.bind(before(first), deadline())
    binder.bind(before(second), deadline())
    machine, starting = host.hold_device(first), host.hold_group(second)
    found = pci_functions.read(node).functions
    gpus = [holders.nodes_of(node, found[PciAddress(it.address)], None) for it in (first, second)]
    processes = NodeHost(Path("/proc"), node.sys, node.dev)
    by_gpu = holders.find(processes, gpus, PATIENCE_S).by_gpu
    (of_first,) = by_gpu[PciAddress(first.address)]
    (of_second,) = by_gpu[PciAddress(second.address)]
    assert (of_first.pid, of_second.pid) == (machine.pid, starting.pid)
    assert f"/dev/vfio/{host.group(first)}" in of_first.uses
    assert of_second.uses == (f"/dev/vfio/{host.group(second)}",)
    assert not of_second.keeps_driver, "A1.5: the group alone does not block an unbind"
    if (
        host.back_end.kernel_log is not None
    ):  # what the simulator has for the anonymous inode is none
        assert of_first.keeps_driver


def test_the_module_is_chosen_and_loaded_when_it_is_needed(
    host: Host, node: NodeHost, binder: Binder
) -> None:
    """A1.14, A1.16."""
    first, back_end = host.board.first, host.back_end
    binder.bind(before(first), deadline())
    assert host.rmmod("vfio_pci") == 0
    bus = pci_functions.read(node)
    assert vfio_modules.driver_of("vfio_pci", bus.drivers) is None
    with pytest.raises(RetryableError, match="the vfio driver is not loaded"):
        binder.bind(before(first), deadline())
    (release,) = (path.name for path in back_end.modules_root.iterdir())
    modules = vfio_modules.ModuleFiles(node, back_end.modules_root, release).read()
    module = modules.module_for(bus.functions[PciAddress(first.address)].modalias)
    assert module == "vfio_pci"
    vfio_modules.load(module, back_end.modprobe)
    assert vfio_modules.driver_of(module, pci_functions.read(node).drivers) == VFIO
    binder.bind(before(first), deadline())
    assert_on_vfio(host, first)
    assert host.rmmod("vfio_pci") == 0
    binder.give_back(before(first), deadline())
    assert_as_before(host, first)


def test_a_gpu_that_is_being_unbound_is_never_bound(
    host: Host, node: NodeHost, binder: Binder, hold: Hold, tmp_path: Path
) -> None:
    """A2: no driver link, and the directory in procfs, mean that an unbind is in flight."""
    gpu = host.board.gpus[0]
    minor = _minor(node, gpu)
    found = pci_functions.read(node).functions[PciAddress(gpu.address)]
    ((number, _),) = (
        each
        for each in holders.nodes_of(node, found, minor).numbers.items()
        if each[1] == f"/dev/nvidia{minor}"
    )
    path = tmp_path / "its-own-name"
    major, _, low = number.partition(":")
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(int(major), int(low)))
    holder = hold(path)
    processes = NodeHost(Path("/proc"), node.sys, node.dev)
    nodes = holders.nodes_of(node, found, minor)
    (by_name,) = holders.find(processes, [nodes], PATIENCE_S).by_gpu[PciAddress(gpu.address)]
    assert (by_name.pid, by_name.uses) == (holder.pid, (f"/dev/nvidia{minor}",))
    writer = host.start_unbind(gpu)
    wait_until(lambda: host.pci.driver(gpu.address) is None, "the link `driver` is gone")
    bus = pci_functions.read(node)
    assert bindings.is_unbinding(bus.functions[PciAddress(gpu.address)], bus)
    for switch in (binder.bind, binder.give_back):
        with pytest.raises(RetryableError, match="NVIDIA driver has not let go") as raised:
            switch(before(gpu), deadline(SHORT_S))
        assert raised.value.reason is Reason.VFIO_DEVICE_BUSY
    assert host.pci.driver(gpu.address) is None
    holder.kill()
    assert writer.wait() == OK
    binder.bind(before(gpu), deadline())
    assert_on_vfio(host, gpu)
    binder.give_back(before(gpu), deadline())
    assert_as_before(host, gpu)


def test_a_board_with_a_second_function(host: Host, binder: Binder) -> None:
    """A GPU with audio: one group, two drivers. The simulated board has none; its profiles do."""
    if not host.board.composite:
        pytest.skip("no board of this kernel has a second function")
    binder.bind(before(*host.board.composite), deadline())
    assert_on_vfio(host, *host.board.composite)
    assert host.is_viable(host.board.composite[0])
    binder.give_back(before(*host.board.composite), deadline())
    assert_as_before(host, *host.board.composite)


def _minor(node: NodeHost, function: Function) -> int:
    text = (node.proc / "driver/nvidia/gpus" / function.address / "information").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("Device Minor:"))
    return int(line.rpartition(" ")[2].strip())
