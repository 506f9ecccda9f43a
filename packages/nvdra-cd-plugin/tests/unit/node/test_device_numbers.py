# SPDX-License-Identifier: Apache-2.0
"""What the files of the kernel module say about IMEX devices."""

import pytest
from nvdra_cd_plugin.node import device_numbers
from nvdra_cd_plugin.node.device_numbers import DeviceNumbers

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
def test_the_kernel_module_reports_how_many_channels_there_are(params: str, count: int) -> None:
    assert device_numbers.channel_count(params) == count


def test_majors_are_those_of_character_devices_by_exact_name() -> None:
    assert device_numbers.major(DEVICES, device_numbers.CHANNELS_DRIVER) == 235
    assert device_numbers.major(DEVICES, device_numbers.CAPABILITIES_DRIVER) == 236
    assert device_numbers.major(DEVICES, "nvidia") is None
    assert device_numbers.major("", "nvidia") is None


def test_a_capability_file_names_a_device_and_its_mode() -> None:
    found = device_numbers.capability(CAPABILITY, 236)
    assert found == DeviceNumbers("/dev/nvidia-caps/nvidia-cap512", 236, 512, 0o400)


@pytest.mark.parametrize(
    "text", ["", "DeviceFileMinor: 512", "DeviceFileMinor: x\nDeviceFileMode: 1"]
)
def test_a_capability_file_without_number_or_mode_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="missing"):
        device_numbers.capability(text, 236)
