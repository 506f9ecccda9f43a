# SPDX-License-Identifier: Apache-2.0
"""What the answers of a GPU, and its silence, say of it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from nvdra_api.ids import MigUUID
from nvdra_gpu_plugin.devices.inventory import Gpu
from nvdra_gpu_plugin.hardware import probe_state
from nvdra_gpu_plugin.hardware.discovery import DiscoveredGpu
from nvdra_gpu_plugin.hardware.probe_state import Answer, Moment, ProbeState, Status
from nvdra_runtime.node.nvml import DeviceHandle, NvmlError, ReturnCode
from nvdra_testing.hardware.gpus import h100

LOST = NvmlError(ReturnCode.GPU_IS_LOST, "nvmlDeviceGetMemoryInfo", "GPU-1", "GPU is lost")


def at(seconds: float) -> Moment:
    return Moment(seconds, datetime(2026, 8, 7, tzinfo=UTC) + timedelta(seconds=seconds))


def description(gpu: Gpu) -> Answer:
    return Answer(DiscoveredGpu(gpu, DeviceHandle(gpu.uuid, None), {}))


GPU = h100(3)
NEW = ProbeState(3)
ASKED = probe_state.asked(NEW, at(0))
WORKING = probe_state.answered(ASKED, description(GPU), at(1))
FAILING = probe_state.answered(WORKING, Answer(error=LOST), at(2))
ONLY_FAILING = probe_state.answered(ASKED, Answer(error=LOST), at(2))
SCREEN = probe_state.answered(ASKED, Answer(), at(1))


@pytest.mark.parametrize(
    ("state", "status", "after_ten_seconds"),
    [
        (NEW, Status.AWAITED, Status.AWAITED),
        (ASKED, Status.AWAITED, Status.OVERDUE),
        (WORKING, Status.WORKING, Status.WORKING),
        (probe_state.asked(WORKING, at(0)), Status.WORKING, Status.OVERDUE),
        (
            probe_state.asked(probe_state.asked(WORKING, at(5)), at(0)),
            Status.WORKING,
            Status.OVERDUE,
        ),
        (
            probe_state.asked(probe_state.asked(WORKING, at(0)), at(5)),
            Status.WORKING,
            Status.OVERDUE,
        ),
        (FAILING, Status.FAILING, Status.FAILING),
        (probe_state.asked(FAILING, at(0)), Status.FAILING, Status.OVERDUE),
        (ONLY_FAILING, Status.FAILING, Status.FAILING),
        (SCREEN, Status.WORKING, Status.WORKING),
    ],
)
def test_a_gpu_is_overdue_when_something_has_waited_longer_than_for_any_that_works(
    state: ProbeState, status: Status, after_ten_seconds: Status
) -> None:
    assert (state.status(9.9), state.status(10.0)) == (status, after_ten_seconds)


def test_an_answer_ends_all_waits() -> None:
    waiting = probe_state.asked(WORKING, at(3))
    for answer in (description(GPU), Answer(error=LOST)):
        after = probe_state.answered(waiting, answer, at(30))
        assert after.waiting_since is None
        assert after.answered_at == 1, "the first answer counts"


def test_what_is_known_of_a_gpu_stays_while_it_fails() -> None:
    assert (FAILING.gpu, FAILING.handle, FAILING.name) == (GPU, WORKING.handle, "gpu-3")
    former = probe_state.answered(ProbeState(3, GPU), Answer(error=LOST), at(2))
    assert (former.gpu, former.handle) == (GPU, None)


def test_a_gpu_that_only_drives_a_screen_is_not_for_compute() -> None:
    assert (SCREEN.is_compute, SCREEN.gpu, SCREEN.name) == (False, None, None)
    assert WORKING.is_compute
    assert ONLY_FAILING.is_compute


def test_a_gpu_is_named_after_the_files_until_it_is_described() -> None:
    assert ProbeState(3).name is None
    assert ProbeState(3, number=5).name == "gpu-5"
    assert ProbeState(3, GPU, number=5).name == "gpu-3"


def test_a_fault_says_since_when_the_gpu_fails_or_is_silent() -> None:
    assert WORKING.fault(at(100)) is None
    assert ASKED.fault(at(9)) is None
    failing, silent = FAILING.fault(at(100)), replace(ASKED, number=3).fault(at(100))
    unknown = ASKED.fault(at(100))
    assert failing is not None
    assert silent is not None
    assert unknown is not None
    assert failing.text.startswith(f"gpu-3 ({GPU.uuid}) does not work since 2026-08-07T00:00:02Z: ")
    assert (failing.device, failing.is_lost) == ("gpu-3", True)
    assert silent.text.startswith("gpu-3 has not answered NVML since 2026-08-07T00:00:00Z; ")
    assert (unknown.device, unknown.is_lost) == ("the GPU at index 3", False)


def test_a_gpu_that_answers_again_says_no_time_that_would_be_another_one_each_time() -> None:
    assert "since" not in WORKING.silence() + FAILING.silence()
    assert "since 2026-08-07T00:00:00Z" in ASKED.silence()


def test_others_are_notified_of_descriptions_and_errors_but_not_of_repeated_answers() -> None:
    again = probe_state.answered(WORKING, description(GPU), at(11))
    assert again.findings == WORKING.findings
    assert len({NEW.findings, WORKING.findings, FAILING.findings, ONLY_FAILING.findings}) == 4


def test_a_mig_device_is_lost_only_if_its_claim_was_known_at_the_last_look() -> None:
    place, uuid = (19, 0), MigUUID("MIG-1")
    assert not NEW.has_lost(place, uuid)
    assert not WORKING.has_lost(place, uuid)
    made = description(GPU)._replace(made=frozenset({place}))
    assert probe_state.answered(WORKING, made, at(2)).has_lost(place, uuid)
