# SPDX-License-Identifier: Apache-2.0
"""What Linux does when PCI functions change between a native driver and vfio-pci.

Each test is a line of table A1, by its number, and runs on Debian's Linux 6.12 in QEMU
(`python -m nvdra_sim.testing.real_kernel`) and on the simulated kernel. Line 17 is a duration.
A real kernel also says some of it in words, which are compared there only.
"""

import os
import stat

from nvdra_sim.testing.passthrough.board import Function
from nvdra_sim.testing.passthrough.host import Host
from nvdra_sim.testing.passthrough.pci_files import CLEAR, NO_OVERRIDE, OK, VFIO, write
from nvdra_sim.testing.passthrough.processes import (
    SLEEPING,
    UNINTERRUPTIBLE,
    Holder,
    Opened,
    Writer,
    children,
    state,
    stays,
    wait_until,
)

A_WHILE_S = 1.0
"""A write that does not block takes a tenth of this, on an emulated processor too."""
NO_DRIVER = "nvdra-no-such-driver"
NO_FUNCTION = "0000:77:00.0"


def start_stuck_unbind(host: Host, function: Function) -> tuple[Holder, Writer]:
    """A process that holds the device of a function, and a writer that unbinds it meanwhile."""
    host.to_vfio(function)
    holder = host.hold_device(function)
    assert holder.opened == Opened(viable=True, failed=None, errno=None)
    writer = host.start_unbind(function)
    wait_until(lambda: host.pci.driver(function.address) is None, "the link `driver` is gone")
    wait_until(lambda: state(writer.pid) == SLEEPING, "the writer sleeps")
    return holder, writer


def test_unbind_waits_for_the_process_that_has_the_device(host: Host) -> None:
    """A1.1: the writer sleeps; SIGKILL makes it uninterruptible, and it stays until the close."""
    holder, writer = start_stuck_unbind(host, host.board.first)
    assert stays(lambda: state(writer.pid) == SLEEPING, A_WHILE_S)
    writer.kill()
    wait_until(lambda: state(writer.pid) == UNINTERRUPTIBLE, "the killed writer is in state D")
    assert stays(lambda: state(writer.pid) == UNINTERRUPTIBLE, A_WHILE_S)
    lines = host.kernel_lines()
    if lines is not None:
        said = f"vfio-pci {host.board.first.address}: "
        waits = "No device request channel registered, blocked until released by user"
        assert f"{said}{waits}" in lines
        (in_use,) = [line for line in lines if f"({writer.pid}) blocked until device" in line]
        assert in_use.startswith(f"{said}Device is currently in use, task ")
    holder.close()
    assert writer.wait() == ""
    assert host.pci.driver(host.board.first.address) is None


def test_what_is_gone_and_what_is_there_during_a_stuck_unbind(host: Host) -> None:
    """A1.2: `driver` and `vfio-dev` are gone, override and group are there; reads are answered."""
    function = host.board.first
    directory = host.pci.device(function.address)
    start_stuck_unbind(host, function)
    assert host.pci.driver(function.address) is None
    assert host.pci.vfio_name(function.address) is None
    assert host.pci.override(function.address) == VFIO
    assert host.group_node(function).is_char_device()
    assert (host.pci.sys_root / "class/vfio" / host.group(function)).exists()
    for name in ("vendor", "device", "class", "numa_node", "resource", "modalias", "uevent"):
        assert (directory / name).read_text() != "", name
    assert host.pci.set_override(function.address, CLEAR) == OK
    assert host.pci.override(function.address) == NO_OVERRIDE


def test_native_bind_during_a_stuck_unbind_blocks(host: Host) -> None:
    """A1.3: a bind to the native driver blocks in state D, and cannot be killed."""
    function = host.board.first
    holder, unbinding = start_stuck_unbind(host, function)
    assert host.pci.set_override(function.address, CLEAR) == OK
    path = host.pci.bus / "drivers" / function.native / "bind"
    binding = host.start_writer(path, function.address)
    wait_until(lambda: state(binding.pid) == UNINTERRUPTIBLE, "the bind is in state D")
    binding.kill()
    wait_until(lambda: state(binding.pid) == UNINTERRUPTIBLE, "the killed bind is in state D")
    assert stays(lambda: state(binding.pid) == UNINTERRUPTIBLE, A_WHILE_S)
    holder.close()
    assert unbinding.wait() == OK
    assert binding.wait() == ""


def test_container_with_a_stuck_writer_cannot_end(host: Host) -> None:
    """A1.4: process 1 of a PID namespace that exits waits for a stuck writer in the namespace."""
    function = host.board.first
    host.to_vfio(function)
    holder = host.hold_device(function)
    # Process 1 exits when its standard input ends.
    shell = ("sh", "-c", '"$@" & read line', "sh")
    namespace = host.start_unbind(function, around=("unshare", "--pid", "--fork", *shell))
    wait_until(lambda: host.pci.driver(function.address) is None, "the link `driver` is gone")
    (process_1,) = children(namespace.pid)
    (writer,) = children(process_1)
    namespace.close_input()
    wait_until(lambda: state(writer) == UNINTERRUPTIBLE, "the writer was killed, and is in state D")
    assert stays(lambda: state(process_1) == SLEEPING, A_WHILE_S)
    assert not namespace.has_ended
    holder.close()
    namespace.wait()
    assert namespace.has_ended


def test_group_without_a_device_does_not_block_unbind(host: Host) -> None:
    """A1.5: only the descriptor of the device blocks, not that of the group."""
    function = host.board.first
    host.to_vfio(function)
    holder = host.hold_group(function)
    assert holder.opened.failed is None
    assert host.start_unbind(function).wait() == OK
    assert host.pci.driver(function.address) is None


def test_group_can_be_open_once(host: Host) -> None:
    """A1.6: a second open of a group is refused with EBUSY, with the device or without it."""
    function = host.board.first
    host.to_vfio(function)
    refused = Opened(viable=None, failed="open", errno="EBUSY")
    for hold in (host.hold_group, host.hold_device):
        holder = hold(function)
        assert holder.opened.failed is None
        assert host.hold_group(function).opened == refused
        holder.kill()
        assert host.is_viable(function)


def test_device_nodes_of_vfio(host: Host) -> None:
    """A1.6: a group is 0600 of root with a dynamic major; `/dev/vfio/vfio` is 0666, 10:196."""
    function = host.board.first
    assert not host.group_node(function).exists()
    host.to_vfio(function)
    group = host.group_node(function).stat()
    assert (stat.S_IMODE(group.st_mode), group.st_uid, group.st_gid) == (0o600, 0, 0)
    assert os.major(group.st_rdev) >= 234  # the range of dynamic majors begins there, downwards
    container = (host.vfio_nodes / "vfio").stat()
    assert stat.S_ISCHR(container.st_mode)
    assert stat.S_IMODE(container.st_mode) == 0o666
    assert (os.major(container.st_rdev), os.minor(container.st_rdev)) == (10, 196)
    assert host.pci.unbind(VFIO, function.address) == OK
    wait_until(lambda: not host.group_node(function).exists(), "the node of the group is gone")


def test_container_node_comes_with_the_module(host: Host) -> None:
    """A1.6: in a devtmpfs, `/dev/vfio/vfio` exists while the module `vfio` is loaded."""
    node = host.vfio_nodes / "vfio"
    assert node.exists()
    assert host.modprobe("-r", "vfio_pci", "vfio_iommu_type1") == 0
    wait_until(lambda: not node.exists(), "/dev/vfio/vfio is gone")
    assert not host.pci.has_driver(VFIO)
    assert host.modprobe(VFIO) == 0
    wait_until(node.is_char_device, "/dev/vfio/vfio is there")
    assert host.pci.has_driver(VFIO)


def test_group_is_viable_without_native_drivers(host: Host) -> None:
    """A1.7: no function of the group may be on a native driver; bridges do not matter."""
    first, second = host.board.pair
    group = host.group(first)
    assert {first.address, second.address, host.board.bridge} <= host.pci.members(group)
    bridge = host.pci.device(host.board.bridge)
    assert (bridge / "class").read_text().startswith("0x0604")
    assert host.pci.driver(host.board.bridge) in (None, "pcieport")
    host.to_vfio(first)
    assert host.is_viable(first) is False
    refused = Opened(viable=False, failed="set-container", errno="EPERM")
    assert host.hold_device(first).opened == refused
    host.make_driverless(second)
    assert host.is_viable(first) is True
    holder = host.hold_device(first)
    assert holder.opened == Opened(viable=True, failed=None, errno=None)
    holder.close()
    host.to_vfio(second)
    assert host.is_viable(first) is True


def test_group_in_use_refuses_native_drivers(host: Host) -> None:
    """A1.8: `bind` is refused with EBUSY, `drivers_probe` with EINVAL, until the group is free."""
    first, second = host.board.pair
    host.to_vfio(first)
    host.make_driverless(second)
    holder = host.hold_device(first)
    assert holder.opened.failed is None
    assert host.pci.bind(second.native, second.address) == "EBUSY"
    assert host.pci.driver(second.address) is None
    assert host.pci.probe(second.address) == "EINVAL"
    assert host.pci.driver(second.address) is None
    holder.close()
    assert host.pci.bind(second.native, second.address) == OK
    assert host.pci.driver(second.address) == second.native


def test_override_takes_any_name_and_unbinds_nothing(host: Host) -> None:
    """A1.9: any name is accepted; `\\n` clears; an empty write and O_TRUNC change nothing."""
    address, native = host.board.first.address, host.board.first.native
    path = host.pci.device(address) / "driver_override"
    assert path.read_text() == "(null)\n"
    for name in (VFIO, NO_DRIVER):
        assert host.pci.set_override(address, name) == OK
        assert path.read_text() == f"{name}\n"
        assert host.pci.driver(address) == native
    assert host.pci.set_override(address, "") == OK
    assert write(path, "", os.O_TRUNC) == OK
    assert path.read_text() == f"{NO_DRIVER}\n"
    assert host.pci.set_override(address, CLEAR) == OK
    assert path.read_text() == "(null)\n"
    assert host.pci.driver(address) == native
    host.to_vfio(host.board.first)
    assert host.pci.set_override(address, CLEAR) == OK
    assert host.pci.driver(address) == VFIO


def test_override_is_lost_by_remove_and_rescan(host: Host) -> None:
    """A1.9: a function that comes back has no override, and its native driver binds it."""
    function = host.board.first
    host.to_vfio(function)
    assert host.pci.remove(function.address) == OK
    wait_until(lambda: not host.pci.device(function.address).exists(), "the function is gone")
    assert host.pci.rescan() == OK
    wait_until(lambda: host.pci.driver(function.address) == function.native, "it has its driver")
    assert host.pci.override(function.address) == NO_OVERRIDE


def test_what_bind_and_unbind_refuse(host: Host) -> None:
    """A1.10: no match and unknown functions are ENODEV; a function that has a driver is EBUSY."""
    address, native = host.board.first.address, host.board.first.native
    pci = host.pci
    assert pci.unbind(native, NO_FUNCTION) == "ENODEV"
    assert pci.unbind(VFIO, address) == "ENODEV"
    assert pci.bind(VFIO, address) == "ENODEV"
    assert pci.bind(native, address) == "EBUSY"
    host.make_driverless(host.board.first)
    assert pci.unbind(native, address) == "ENODEV"
    assert pci.bind(VFIO, NO_FUNCTION) == "ENODEV"
    assert pci.bind(VFIO, address) == "ENODEV"
    assert pci.set_override(address, NO_DRIVER) == OK
    assert pci.bind(VFIO, address) == "ENODEV"
    assert pci.bind(native, address) == "ENODEV"
    assert pci.set_override(address, VFIO) == OK
    assert pci.bind(native, address) == "ENODEV"
    assert pci.bind(VFIO, address) == OK
    assert pci.bind(VFIO, address) == "EBUSY"
    assert pci.bind(native, address) == "ENODEV"
    assert pci.driver(address) == VFIO


def test_probe_reports_success_without_a_driver(host: Host) -> None:
    """A1.11: the answer of `drivers_probe` says nothing; the link `driver` does."""
    address, native = host.board.first.address, host.board.first.native
    pci = host.pci
    assert pci.set_override(address, VFIO) == OK
    assert pci.probe(address) == OK
    assert pci.driver(address) == native
    host.make_driverless(host.board.first)
    assert pci.set_override(address, NO_DRIVER) == OK
    assert pci.probe(address) == OK
    assert pci.driver(address) is None
    assert pci.set_override(address, VFIO) == OK
    assert pci.probe(address) == OK
    assert pci.driver(address) == VFIO
    assert pci.unbind(VFIO, address) == OK
    assert pci.set_override(address, CLEAR) == OK
    assert pci.probe(address) == OK
    assert pci.driver(address) == native


def test_vfio_numbers_follow_the_order_of_binding(host: Host) -> None:
    """A1.12: `vfioN` is the smallest free number; the number of the group stays."""
    first, second = host.board.first, host.board.second
    groups = [host.group(first), host.group(second)]
    host.to_vfio(first)
    host.to_vfio(second)
    names = [host.pci.vfio_name(function.address) for function in (first, second)]
    assert names == ["vfio0", "vfio1"]
    assert host.pci.unbind(VFIO, first.address) == OK
    assert host.pci.bind(VFIO, first.address) == OK
    assert host.pci.vfio_name(first.address) == "vfio0"
    for function in (first, second):
        assert host.pci.unbind(VFIO, function.address) == OK
    for function in (second, first):
        assert host.pci.bind(VFIO, function.address) == OK
    swapped = [host.pci.vfio_name(function.address) for function in (first, second)]
    assert swapped == ["vfio1", "vfio0"]
    assert [host.group(first), host.group(second)] == groups


def test_vfio_dev_does_not_show_a_device_node(host: Host) -> None:
    """A1.13: `vfio-dev/vfioN` exists without VFIO_DEVICE_CDEV; only the node shows a cdev."""
    function = host.board.first
    host.to_vfio(function)
    assert host.pci.vfio_name(function.address) == "vfio0"
    assert (host.pci.device(function.address) / "vfio-dev/vfio0").is_dir()
    assert not (host.vfio_nodes / "devices").exists()
    assert not host.pci.iommu_node.exists()


def test_unloaded_module_leaves_its_functions_without_driver(host: Host) -> None:
    """A1.14: rmmod of vfio_pci succeeds while no device is open; overrides stay."""
    function = host.board.first
    host.to_vfio(function)
    holder = host.hold_device(function)
    assert holder.opened.failed is None
    assert host.rmmod("vfio_pci") != 0
    assert host.pci.driver(function.address) == VFIO
    holder.close()
    assert host.rmmod("vfio_pci") == 0
    assert not host.pci.has_driver(VFIO)
    assert host.pci.driver(function.address) is None
    assert host.pci.override(function.address) == VFIO
    assert (host.vfio_nodes / "vfio").exists()


def test_ids_of_the_module_cannot_be_read(host: Host) -> None:
    """A1.15: sysfs does not show the parameter `ids`, so only a binding itself can be seen."""
    module = host.pci.sys_root / "module/vfio_pci"
    assert module.is_dir()
    assert not (module / "parameters/ids").exists()


def test_module_of_vfio_in_the_aliases(host: Host) -> None:
    """A1.16: one alias for all functions names the module vfio_pci, whose driver is vfio-pci."""
    (release,) = host.back_end.modules_root.iterdir()
    lines = (release / "modules.alias").read_text().splitlines()
    of_vfio = [line for line in lines if line.endswith(" vfio_pci")]
    assert of_vfio == ["alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci"]
    module = host.pci.bus / "drivers" / VFIO / "module"
    assert module.resolve() == (host.pci.sys_root / "module/vfio_pci").resolve()
