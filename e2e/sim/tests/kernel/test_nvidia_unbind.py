# SPDX-License-Identifier: Apache-2.0
"""What Linux shows while a driver like NVIDIA's waits in `remove` for the processes of a GPU.

The driver is the stand-in of `nvdra_sim.testing.real_kernel`, whose nodes can be opened. Those of
the simulator cannot, so these tests have no meaning on its kernel.
"""

import os
import stat
from pathlib import Path

import pytest
from nvdra_sim.testing.passthrough.board import Function
from nvdra_sim.testing.passthrough.host import Host
from nvdra_sim.testing.passthrough.pci_files import OK, VFIO
from nvdra_sim.testing.passthrough.processes import (
    UNINTERRUPTIBLE,
    Opened,
    Writer,
    state,
    stays,
    wait_until,
)

MAJOR = 195
A_WHILE_S = 1.5
"""Three looks of the driver at its usage count."""


@pytest.fixture
def gpu(host: Host) -> Function:
    """A GPU of the stand-in."""
    if host.back_end.kernel_log is None:
        pytest.skip("the nodes of simulated GPUs cannot be opened")
    return host.board.gpus[0]


def directory(function: Function) -> Path:
    return Path("/proc/driver/nvidia/gpus") / function.address


def minor(function: Function) -> int:
    lines = (directory(function) / "information").read_text().splitlines()
    (found,) = [line for line in lines if line.startswith("Device Minor:")]
    return int(found.rpartition(" ")[2])


def make_node(function: Function, folder: Path) -> Path:
    """A node of the GPU, outside `/dev` as in a container."""
    node = folder / f"nvidia{minor(function)}"
    os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(MAJOR, minor(function)))
    return node


def start_stuck_unbind(host: Host, function: Function) -> Writer:
    writer = host.start_unbind(function)
    wait_until(lambda: host.pci.driver(function.address) is None, "the link `driver` is gone")
    wait_until(lambda: state(writer.pid) == UNINTERRUPTIBLE, "the writer is in state D")
    return writer


def test_unbind_cannot_be_ended_while_a_process_has_the_gpu(
    host: Host, gpu: Function, tmp_path: Path
) -> None:
    """A2: no driver link, but the directory in /proc: an unbind is in flight."""
    node = make_node(gpu, tmp_path)
    holder = host.hold_gpu(node)
    writer = start_stuck_unbind(host, gpu)
    writer.kill()
    assert stays(lambda: state(writer.pid) not in (None, "Z"), A_WHILE_S)
    assert directory(gpu).is_dir()
    assert host.hold_gpu(node).opened == Opened(viable=None, failed="open", errno="ENODEV")
    said = f"Attempting to remove device {gpu.address} with non-zero usage count!"
    assert any(said in line for line in host.kernel_lines() or [])
    holder.close()
    assert writer.wait() == ""
    assert not directory(gpu).exists()
    assert host.pci.driver(gpu.address) is None


def test_bind_to_vfio_blocks_until_the_gpu_is_free(
    host: Host, gpu: Function, tmp_path: Path
) -> None:
    """A1.3, A2: a bind during the unbind is uninterruptible, and succeeds after it."""
    holder = host.hold_gpu(make_node(gpu, tmp_path))
    unbinding = start_stuck_unbind(host, gpu)
    assert host.pci.set_override(gpu.address, VFIO) == OK
    binding = host.start_writer(host.pci.bus / "drivers" / VFIO / "bind", gpu.address)
    wait_until(lambda: state(binding.pid) == UNINTERRUPTIBLE, "the bind is in state D")
    assert stays(lambda: state(binding.pid) == UNINTERRUPTIBLE, A_WHILE_S)
    holder.close()
    assert (unbinding.wait(), binding.wait()) == (OK, OK)
    assert host.pci.driver(gpu.address) == VFIO


def test_mapping_without_a_descriptor_keeps_the_gpu(
    host: Host, gpu: Function, tmp_path: Path
) -> None:
    """A2: only /proc/<pid>/map_files has the device number of a mapping; `maps` has a path."""
    node = make_node(gpu, tmp_path)
    holder = host.map_gpu(node)
    number = os.makedev(MAJOR, minor(gpu))
    process = Path(f"/proc/{holder.pid}")
    assert number not in device_numbers(process / "fd")
    assert number in device_numbers(process / "map_files")
    writer = start_stuck_unbind(host, gpu)
    holder.kill()
    assert writer.wait() == OK


def test_minors_follow_the_order_of_binding(host: Host, gpu: Function) -> None:
    """A2: the minor is free after the removal, and the next GPU gets the lowest free one."""
    other = host.board.gpus[1]
    before = (minor(gpu), minor(other))
    for function in (gpu, other):
        host.make_driverless(function)
    for function in (other, gpu):
        assert host.pci.bind(function.native, function.address) == OK
    assert (minor(other), minor(gpu)) == before


def device_numbers(folder: Path) -> set[int]:
    """The numbers of the character devices that links of a process lead to."""
    found = (link.stat() for link in folder.iterdir())
    return {facts.st_rdev for facts in found if stat.S_ISCHR(facts.st_mode)}
