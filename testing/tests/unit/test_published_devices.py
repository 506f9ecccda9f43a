# SPDX-License-Identifier: Apache-2.0
"""When published devices were not there, from a recording of slices."""

from typing import Any

from nvdra_testing.cluster import published_devices
from nvdra_testing.cluster.published_devices import Absence
from nvdra_testing.cluster.recorders import Observation, Recording

DRIVER = "gpu.nvidia.com"


def event(
    at: float, kind: str, *devices: str, name: str = "s", node: str = "node-1"
) -> Observation:
    content: dict[str, Any] = {
        "type": kind,
        "object": {
            "metadata": {"name": name},
            "spec": {
                "driver": DRIVER,
                "pool": {"name": node},
                "devices": [{"name": each} for each in devices],
            },
        },
    }
    return Observation(at, "", content)


def absences(*events: Observation) -> list[Absence]:
    return published_devices.absences(Recording(list(events)), since=10.0)


def test_devices_that_stay_are_never_absent() -> None:
    assert absences(event(1, "ADDED", "gpu-0"), event(11, "MODIFIED", "gpu-0", "gpu-1")) == []


def test_a_slice_that_is_deleted_and_created_again_was_absent_in_between() -> None:
    found = absences(
        event(1, "ADDED", "gpu-0", "gpu-1"),
        event(11, "DELETED", "gpu-0", "gpu-1"),
        event(13.5, "ADDED", "gpu-0", "gpu-1", name="another"),
    )
    assert found == [Absence("node-1", DRIVER, 2, 11, 2.5)]


def test_a_device_that_is_withdrawn_was_absent_also_if_others_stay() -> None:
    found = absences(
        event(1, "ADDED", "gpu-0", "gpu-1"),
        event(12, "MODIFIED", "gpu-0"),
        event(15, "MODIFIED", "gpu-0", "gpu-1"),
    )
    assert found == [Absence("node-1", DRIVER, 1, 12, 3)]


def test_devices_that_do_not_come_back_are_absent_to_the_end_of_the_recording() -> None:
    found = absences(
        event(1, "ADDED", "gpu-0"),
        event(11, "DELETED", "gpu-0"),
        event(20, "ADDED", "gpu-0", name="other", node="node-2"),
    )
    assert found == [Absence("node-1", DRIVER, 1, 11, 9)]


def test_what_was_published_later_is_not_missed() -> None:
    assert absences(event(11, "ADDED", "gpu-0"), event(12, "DELETED", "gpu-0")) == []
