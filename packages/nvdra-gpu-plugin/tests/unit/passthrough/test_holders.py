# SPDX-License-Identifier: Apache-2.0
"""Holders are processes of this machine; the devices that they hold are stand-ins."""

import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import PciAddress
from nvdra_gpu_plugin.passthrough import holders, process_files
from nvdra_gpu_plugin.passthrough.holders import DeviceNodes, Holder
from nvdra_gpu_plugin.passthrough.pci_functions import PciFunction
from nvdra_gpu_plugin.passthrough.process_files import Use
from nvdra_runtime.node.host import Host

GPU, OTHER = PciAddress("0000:3b:00.0"), PciAddress("0000:86:00.0")
UID = "0b1d4c7a-1f0e-4a53-9c40-5a2d3a1f2b3c"
CONTAINER = "ab" * 32
LOCAL_MAJOR = 60
"""For local use, in Documentation/admin-guide/devices.txt of Linux: no driver has it."""

OPEN = "import os, sys; os.open(sys.argv[1], os.O_PATH); print(flush=True); sys.stdin.read()"
"""Opens a device without its driver, which there is none of."""
WITHOUT_RIGHTS = """
import os, sys
sys.path.insert(0, sys.argv.pop(1))
import process_files
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
process_files.main()
"""
MAP = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
mapping = mmap.mmap(file, 4096)
os.close(file)
print(flush=True)
sys.stdin.read()
"""


Start = Callable[[str, Path], int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts programs that hold what their argument names until the test ends."""
    started: list[subprocess.Popen[bytes]] = []

    def start_one(program: str, path: Path) -> int:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        return process.pid

    yield start_one
    for process in started:
        process.communicate(timeout=60)


NUMBER = f"{LOCAL_MAJOR}:{os.getpid() & 0xFFFFF}"
NODES = DeviceNodes(GPU, {NUMBER: "/dev/nvidia3"}, 3)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A device that only this test has, under a name of its own."""
    path = tmp_path / "gpu"
    major, _, minor = NUMBER.partition(":")
    os.mknod(path, 0o20600, os.makedev(int(major), int(minor)))
    return path


def test_a_device_is_told_by_its_number_under_any_name(start: Start, node: Path) -> None:
    pid = start(OPEN, node)
    found = holders.find(Host(), [NODES, DeviceNodes(OTHER, {"60:99": "/dev/nvidia4"})])
    (holder,) = found.by_gpu[GPU]
    assert (holder.pid, holder.uses) == (pid, ("/dev/nvidia3",))
    assert holder.command.startswith("python")
    assert holder.keeps_driver
    assert OTHER not in found.by_gpu


def test_this_process_does_not_count(node: Path) -> None:
    descriptor = os.open(node, os.O_PATH)
    try:
        assert holders.find(Host(), [NODES]).by_gpu == {}
    finally:
        os.close(descriptor)


def test_a_mapping_counts_after_its_descriptor_is_closed(start: Start, tmp_path: Path) -> None:
    """Where the kernel names no device of a mapping, its path does."""
    file = tmp_path / "dev/nvidia3"
    file.parent.mkdir()
    file.write_bytes(bytes(mmap.PAGESIZE))
    pid = start(MAP, file)
    (holder,) = holders.find(Host(), [NODES]).by_gpu[GPU]
    assert (holder.pid, holder.uses) == (pid, ("a mapping of /dev/nvidia3",))


def test_other_files_of_that_name_do_not_count(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "nvidia3"
    file.write_bytes(bytes(mmap.PAGESIZE))
    start(MAP, file)
    assert holders.find(Host(), [NODES]).by_gpu == {}


def test_the_devices_of_a_gpu(tmp_path: Path) -> None:
    host = Host(tmp_path / "proc", tmp_path / "sys", tmp_path / "dev")
    directory = host.sys / "bus/pci/devices" / GPU
    for name, number in (("drm/card1", "226:1"), ("vfio-dev/vfio0", "511:0")):
        (directory / name).mkdir(parents=True)
        (directory / name / "dev").write_text(f"{number}\n")
    (directory / "drm/renderD129").mkdir()  # without a number and a node
    (host.sys / "class/vfio/17").mkdir(parents=True)
    (host.sys / "class/vfio/17/dev").write_text("243:0\n")
    function = PciFunction(GPU, 0x10DE, 1, 0x030200, "nvidia", group=17)
    assert holders.nodes_of(host, function, 3) == DeviceNodes(
        GPU, {"195:3": "/dev/nvidia3", "226:1": "/dev/dri/card1"}, 3
    )
    function = PciFunction(GPU, 0x10DE, 1, 0x030200, "vfio-pci", group=17, vfio_device="vfio0")
    assert holders.nodes_of(host, function, None) == DeviceNodes(
        GPU,
        {
            "226:1": "/dev/dri/card1",
            "243:0": "/dev/vfio/17",
            "511:0": "/dev/vfio/devices/vfio0",
        },
        group="243:0",
    )


def test_the_driver_s_major_is_the_one_that_the_kernel_lists(tmp_path: Path) -> None:
    host = Host(tmp_path, tmp_path, tmp_path)
    (tmp_path / "devices").write_text("Character devices:\n  1 nvidia-frontend\n505 nvidia-caps\n")
    function = PciFunction(GPU, 0x10DE, 1, 0x030200, "nvidia")
    assert holders.nodes_of(host, function, 3).numbers == {"1:3": "/dev/nvidia3"}


def test_a_vfio_device_belongs_to_the_group_that_its_process_has_open() -> None:
    gpu = DeviceNodes(GPU, {"243:0": "/dev/vfio/17"}, group="243:0")

    def names(use: Use, *opened: str) -> list[tuple[str, bool]]:
        return list(holders._names(gpu, use, opened))

    device = Use(7, "vfio-device")
    assert names(device, "243:0") == [("a vfio device", True)]
    assert names(device, "243:1") == []
    assert names(device) == [("a vfio device", True)], "it may be of any group"
    assert names(device._replace(name=GPU), "243:1") == [("a vfio device", True)]
    assert names(device._replace(name=OTHER), "243:0") == []
    group = Use(7, "open", "243:0", "/dev/vfio/17")
    assert names(group, "243:0") == [("/dev/vfio/17", False)]


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        (f"0::/kubepods/burstable/pod{UID}/{CONTAINER}", (UID, CONTAINER)),
        (f"0::/kubepods/pod{UID}/{CONTAINER}", (UID, CONTAINER)),
        (
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
            f"{UID.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope",
            (UID, CONTAINER),
        ),
        (
            f"12:memory:/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/"
            f"crio-{CONTAINER}.scope\n1:name=systemd:/",
            (UID, CONTAINER),
        ),
        (f"0::/../../besteffort/pod{UID}/{CONTAINER}", (UID, CONTAINER)),
        (f"0::/kubepods/burstable/pod{'0a' * 16}/{CONTAINER}", ("0a" * 16, CONTAINER)),
        (f"0::/kubepods/burstable/pod{UID}", (UID, "")),
        ("0::/system.slice/nvidia-persistenced.service", (None, "")),
        ("0::/user.slice/podman.slice/libpod-1.scope", (None, "")),
        ("", (None, "")),
    ],
)
def test_the_pod_of_a_process(cgroup: str, expected: tuple[str | None, str]) -> None:
    assert holders.pod_of(cgroup) == expected


def test_tenants_see_the_process_and_operators_its_pod() -> None:
    from_pod = Holder(12, "python3", ("/dev/nvidia3",), True, None, "")
    of_pod = Holder(13, "dcgm", ("a mapping of /dev/nvidia3",), True, holders.PodUID(UID), "abc")
    error = holders.busy(GPU, [from_pod, of_pod])
    assert error.reason is Reason.VFIO_DEVICE_BUSY
    assert error.message == (
        "GPU 0000:3b:00.0 is in use on the node: python3 (pid 12), dcgm (pid 13)"
    )
    assert error.operator_message == (
        "GPU 0000:3b:00.0 is in use on the node: python3 (pid 12) with /dev/nvidia3 of the host, "
        f"dcgm (pid 13) with a mapping of /dev/nvidia3 of pod {UID}, container abc"
    )


def test_a_look_that_takes_too_long_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "maps")
    (tmp_path / "7/fd").mkdir(parents=True)
    os.mkfifo(tmp_path / "7/maps")  # opening it blocks
    with pytest.raises(RetryableError, match=r"no answer in 1 s") as raised:
        holders.find(Host(proc=tmp_path, sys=tmp_path), [NODES], timeout_s=1.0)
    assert raised.value.reason is Reason.VFIO_DEVICE_BUSY


def test_processes_that_cannot_be_looked_at_are_counted() -> None:
    directory = str(Path(process_files.__file__).parent)
    command = [sys.executable, "-I", "-S", "-c", WITHOUT_RIGHTS, directory, "/proc", "", "", ""]
    found = subprocess.run(command, capture_output=True, check=True)
    assert b"0\tunreadable\t\t" in found.stdout.splitlines()


def test_nothing_is_asked_of_a_network_file_system(tmp_path: Path, node: Path) -> None:
    """Asking it can block for as long as its server is away."""
    process = tmp_path / "7"
    (process / "fd").mkdir(parents=True)
    (process / "ns").mkdir()
    (process / "maps").touch()
    (process / "ns/mnt").symlink_to("mnt:[1]")
    (process / "fd/3").symlink_to(node)
    for kind, expected in (("ext4", [Use(7, "open", NUMBER, str(node))]), ("nfs4", [])):
        line = f"36 35 0:42 / {tmp_path} rw shared:1 - {kind} server:/ rw\n"
        (process / "mountinfo").write_text(line)
        assert list(process_files.uses(str(tmp_path), "", {NUMBER}, {""})) == expected
