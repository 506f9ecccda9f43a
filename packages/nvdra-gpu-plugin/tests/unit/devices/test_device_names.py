# SPDX-License-Identifier: Apache-2.0
"""Names of devices: whole GPUs by minor number, MIG devices by profile and place."""

import pytest
from nvdra_api.ids import DeviceName
from nvdra_gpu_plugin.devices import device_names
from nvdra_gpu_plugin.devices.device_names import MigName


@pytest.mark.parametrize(
    ("minor", "profile", "profile_id", "start", "name"),
    [
        (0, "1g.5gb", 19, 4, "gpu-0-mig-1g5gb-19-4"),
        (0, "1g.10gb+me", 20, 3, "gpu-0-mig-1g10gb-me-20-3"),
        (3, "1g.10gb-me", 67, 0, "gpu-3-mig-1g10gb-me-67-0"),
        (1, "1g.24gb+me.all", 65, 9, "gpu-1-mig-1g24gb-meall-65-9"),
        (12, "2g.48gb+gfx", 35, 6, "gpu-12-mig-2g48gb-gfx-35-6"),
    ],
)
def test_a_mig_device_is_named_by_its_gpu_profile_and_first_memory_slice(
    minor: int, profile: str, profile_id: int, start: int, name: str
) -> None:
    found = device_names.mig_name(minor, profile, profile_id, start)
    assert found == name
    parsed = device_names.parse_mig_name(found)
    assert parsed is not None
    assert (parsed.number, parsed.profile_id, parsed.start) == (minor, profile_id, start)


def test_parts_of_one_gpu_instance_have_names_of_their_own() -> None:
    parts = [device_names.mig_name(0, "1c.3g.20gb", 9, 4, start) for start in (0, 1, 2)]
    assert parts[1] == "gpu-0-mig-1c3g20gb-c1-9-4"
    assert len(set(parts)) == 3
    assert device_names.parse_mig_name(parts[1]) == MigName(0, "1c3g20gb-c1", 9, 4)


@pytest.mark.parametrize("name", ["gpu-0", "gpu-vfio-0", "gpu-0-mig-1g5gb", "xgpu-0-mig-1g-1-1"])
def test_names_of_other_kinds_are_not_taken_for_mig_devices(name: str) -> None:
    assert device_names.parse_mig_name(name) is None
    assert device_names.parent_name(DeviceName(name)) == name


def test_the_name_of_a_mig_device_tells_its_gpu() -> None:
    assert device_names.parent_name(DeviceName("gpu-12-mig-1g10gb-me-20-3")) == "gpu-12"
