"""What the kernel module's files say of IMEX's devices."""

import os
from pathlib import Path

import pytest
from nvdra_api.runtime.node.host import Host
from nvdra_api.types.errors import PermanentError, Reason
from nvdra_cd_plugin import channels
from nvdra_cd_plugin.channels import DeviceNumbers
from nvdra_cd_plugin.node_devices import NodeDevices

DEVICES = """\
Character devices:
  1 mem
235 nvidia-caps-imex-channels
236 nvidia-caps

Block devices:
237 nvidia-caps-imex-channels
259 blkext
"""
CAPABILITY = "DeviceFileMinor: 512\nDeviceFileMode: 256\nDeviceFileModify: 0\n"


@pytest.mark.parametrize(
    ("params", "count"),
    [
        ("ModifyDeviceFiles: 1\nImexChannelCount: 64\n", 64),
        ("NVreg_ImexChannelCount: 16", 16),
        ("ImexChannelCount: many", 2048),
        ("", 2048),
    ],
)
def test_the_module_says_how_many_channels_there_are(params: str, count: int) -> None:
    assert channels.count(params) == count


def test_majors_are_those_of_character_devices_by_exact_name() -> None:
    assert channels.major(DEVICES, channels.CHANNELS_DRIVER) == 235
    assert channels.major(DEVICES, channels.CAPABILITIES_DRIVER) == 236
    assert channels.major(DEVICES, "nvidia") is None
    assert channels.major("", "nvidia") is None


def test_a_capability_file_names_a_device_and_its_mode() -> None:
    found = channels.capability(CAPABILITY, 236)
    assert found == DeviceNumbers("/dev/nvidia-caps/nvidia-cap512", 236, 512, 0o400)


@pytest.mark.parametrize(
    "text", ["", "DeviceFileMinor: 512", "DeviceFileMinor: x\nDeviceFileMode: 1"]
)
def test_one_that_does_not_say_it_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="does not say"):
        channels.capability(text, 236)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    proc, dev = tmp_path / "proc", tmp_path / "dev"
    (proc / "driver/nvidia/capabilities").mkdir(parents=True)
    (dev / "nvidia-caps-imex-channels").mkdir(parents=True)
    (proc / "devices").write_text(DEVICES)
    (proc / "driver/nvidia/capabilities/fabric-imex-mgmt").write_text(CAPABILITY)
    return Host(proc=proc, sys=tmp_path / "sys", dev=dev)


def test_channels_need_no_nodes_on_the_host(host: Host) -> None:
    node = NodeDevices(host)
    assert node.count() == 2048
    path = "/dev/nvidia-caps-imex-channels/channel"
    assert node.channels(3, 2) == (
        DeviceNumbers(f"{path}3", 235, 3, 0o666),
        DeviceNumbers(f"{path}4", 235, 4, 0o666),
    )
    assert node.capability().minor == 512


def test_a_module_that_was_told_to_have_no_channels_is_named(host: Host) -> None:
    (host.proc / "driver/nvidia/params").write_text("ImexChannelCount: 0\n")
    with pytest.raises(PermanentError, match="no IMEX channels") as refusal:
        NodeDevices(host).count()
    assert refusal.value.reason is Reason.DEVICE_NODE_MISSING


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a device node")
def test_a_node_in_a_channels_place_that_is_another_device_is_refused(host: Host) -> None:
    place = host.dev / "nvidia-caps-imex-channels/channel0"
    os.mknod(place, 0o20666, os.makedev(235, 0))
    NodeDevices(host).channels(0, 1)
    place.unlink()
    os.mknod(place, 0o20666, os.makedev(1, 3))
    with pytest.raises(PermanentError, match="channel0 is not device 235:0") as refused:
        NodeDevices(host).channels(0, 1)
    assert refused.value.reason is Reason.DEVICE_NODE_MISSING


def test_a_module_without_channels_says_so(host: Host) -> None:
    (host.proc / "devices").write_text("Character devices:\n  1 mem\n")
    with pytest.raises(PermanentError, match="does not list nvidia-caps-imex-channels") as refused:
        NodeDevices(host).channels(0, 1)
    assert refused.value.reason is Reason.DEVICE_NODE_MISSING


def test_a_fabric_of_the_nodes_own_is_told_by_its_switches(host: Host) -> None:
    assert not NodeDevices(host).has_local_fabric()
    board = host.sys / "class/infiniband/mlx5_0/device"
    board.mkdir(parents=True)
    (board / "vpd").write_bytes(b"\x82\x10\x00SW_MNG\x00")
    assert NodeDevices(host).has_local_fabric()


def test_a_board_that_cannot_be_read_keeps_nobody_from_starting(host: Host) -> None:
    boards = host.sys / "class/infiniband"
    (boards / "mlx5_0/device/vpd").mkdir(parents=True)  # reading it fails, as with EIO
    assert not NodeDevices(host).has_local_fabric()
    (boards / "mlx5_1/device").mkdir(parents=True)
    (boards / "mlx5_1/device/vpd").write_bytes(b"\x82\x00 SW_MNG \x78")
    assert NodeDevices(host).has_local_fabric()
