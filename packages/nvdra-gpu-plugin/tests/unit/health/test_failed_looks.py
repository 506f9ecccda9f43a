# SPDX-License-Identifier: Apache-2.0
"""GPUs that cannot be looked at for a minute."""

from nvdra_api.ids import GpuUUID
from nvdra_gpu_plugin.health.failed_looks import FailedLook, FailedLooks

FIRST, SECOND = GpuUUID("GPU-1"), GpuUUID("GPU-2")


def test_a_gpu_is_not_monitored_once_its_looks_have_failed_for_a_minute() -> None:
    looks = FailedLooks()
    looks.note({FIRST: FailedLook("it does not answer")}, 100)
    looks.note({FIRST: FailedLook("Unknown Error"), SECOND: FailedLook("Unknown Error")}, 159)
    assert looks.lasting(159) == {}
    assert looks.lasting(160) == {FIRST: "NVML does not say how it is: Unknown Error"}
    assert set(looks.lasting(219)) == {FIRST, SECOND}


def test_a_look_that_is_answered_in_between_begins_the_minute_again() -> None:
    looks = FailedLooks()
    looks.note({FIRST: FailedLook("Unknown Error")}, 100)
    looks.note({}, 130)
    looks.note({FIRST: FailedLook("Unknown Error")}, 140)
    assert looks.lasting(199) == {}
    assert set(looks.lasting(200)) == {FIRST}
