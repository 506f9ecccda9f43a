# SPDX-License-Identifier: Apache-2.0
"""The IMEX devices of a node, read from a simulated /proc."""

import os
from pathlib import Path

import pytest
from nvdra_api.errors import PermanentError, Reason
from nvdra_cd_plugin.node.device_numbers import DeviceNumbers
from nvdra_cd_plugin.node.imex_devices import ImexDevices
from nvdra_runtime.node.host import Host

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


@pytest.fixture
def host(tmp_path: Path) -> Host:
    proc, dev = tmp_path / "proc", tmp_path / "dev"
    (proc / "driver/nvidia/capabilities").mkdir(parents=True)
    (dev / "nvidia-caps-imex-channels").mkdir(parents=True)
    (proc / "devices").write_text(DEVICES)
    (proc / "driver/nvidia/capabilities/fabric-imex-mgmt").write_text(CAPABILITY)
    return Host(proc=proc, sys=tmp_path / "sys", dev=dev)


def test_channels_need_no_device_nodes_on_the_host(host: Host) -> None:
    devices = ImexDevices(host)
    assert devices.channel_count() == 2048
    path = "/dev/nvidia-caps-imex-channels/channel"
    assert devices.channels(3, 2) == (
        DeviceNumbers(f"{path}3", 235, 3, 0o666),
        DeviceNumbers(f"{path}4", 235, 4, 0o666),
    )
    assert devices.management_capability().minor == 512


def test_a_kernel_module_loaded_without_channels_is_named(host: Host) -> None:
    (host.proc / "driver/nvidia/params").write_text("ImexChannelCount: 0\n")
    with pytest.raises(PermanentError, match="no IMEX channels") as error:
        ImexDevices(host).channel_count()
    assert error.value.reason is Reason.DEVICE_NODE_MISSING


def test_a_file_that_cannot_be_looked_at_is_named(host: Host) -> None:
    channels = host.dev / "nvidia-caps-imex-channels"
    channels.rmdir()
    for path in (host.proc / "driver/nvidia/params", channels):
        path.symlink_to(path.name)
    devices = ImexDevices(host)
    for query in (devices.channel_count, lambda: devices.channels(0, 1)):
        with pytest.raises(PermanentError, match="Too many levels of symbolic links") as error:
            query()
        assert error.value.reason is Reason.DEVICE_NODE_MISSING


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a device node")
def test_another_device_at_a_channels_path_is_refused(host: Host) -> None:
    node = host.dev / "nvidia-caps-imex-channels/channel0"
    os.mknod(node, 0o20666, os.makedev(235, 0))
    ImexDevices(host).channels(0, 1)
    node.unlink()
    os.mknod(node, 0o20666, os.makedev(1, 3))
    with pytest.raises(PermanentError, match="channel0 is not the channel's device 235:0") as error:
        ImexDevices(host).channels(0, 1)
    assert error.value.reason is Reason.DEVICE_NODE_MISSING


def test_a_kernel_module_that_knows_no_channels_is_reported(host: Host) -> None:
    (host.proc / "devices").write_text("Character devices:\n  1 mem\n")
    with pytest.raises(PermanentError, match="does not list nvidia-caps-imex-channels") as error:
        ImexDevices(host).channels(0, 1)
    assert error.value.reason is Reason.DEVICE_NODE_MISSING


def test_the_nodes_own_fabric_is_recognized_by_its_switches(host: Host) -> None:
    assert not ImexDevices(host).has_local_fabric()
    adapter = host.sys / "class/infiniband/mlx5_0/device"
    adapter.mkdir(parents=True)
    (adapter / "vpd").write_bytes(b"\x82\x10\x00SW_MNG\x00")
    assert ImexDevices(host).has_local_fabric()


def test_an_unreadable_adapter_does_not_prevent_the_start(host: Host) -> None:
    adapters = host.sys / "class/infiniband"
    (adapters / "mlx5_0/device/vpd").mkdir(parents=True)  # reading it fails, as with EIO
    assert not ImexDevices(host).has_local_fabric()
    (adapters / "mlx5_1/device").mkdir(parents=True)
    (adapters / "mlx5_1/device/vpd").write_bytes(b"\x82\x00 SW_MNG \x78")
    assert ImexDevices(host).has_local_fabric()
