# SPDX-License-Identifier: Apache-2.0
"""When a GPU that answers with errors counts as lost."""

from datetime import UTC, datetime, timedelta

import pytest
from nvdra_gpu_plugin.devices.gpu_loss import GpuLoss
from nvdra_gpu_plugin.hardware.probe_state import GpuErrors, Moment
from nvdra_runtime.node.nvml import NvmlError, ReturnCode

START = datetime(2026, 8, 7, tzinfo=UTC)


def answer(code: int) -> NvmlError:
    return NvmlError(code, "nvmlDeviceGetMemoryInfo", "GPU-1", f"error {code}")


def after(*answers: NvmlError | ValueError | None) -> GpuErrors:
    """Answers, one every ten seconds from second 0 on."""
    errors = GpuErrors()
    for number, each in enumerate(answers):
        at = 10.0 * number
        errors = errors.after(each, Moment(at, START + timedelta(seconds=at)))
    return errors


@pytest.mark.parametrize(
    ("code", "at_once", "later"),
    [
        (ReturnCode.GPU_IS_LOST, GpuLoss.OFF_THE_BUS, GpuLoss.OFF_THE_BUS),
        (ReturnCode.RESET_REQUIRED, GpuLoss.RESET_REQUIRED, GpuLoss.RESET_REQUIRED),
        (ReturnCode.UNKNOWN, None, GpuLoss.NVML_ERRORS),
        (ReturnCode.DRIVER_NOT_LOADED, None, None),  # of the driver, not of the GPU
    ],
)
def test_a_gpu_is_lost_if_it_says_so_or_if_its_errors_last(
    code: int, at_once: GpuLoss | None, later: GpuLoss | None
) -> None:
    errors = after(None, answer(code))
    assert (errors.loss(10), errors.loss(39), errors.loss(40)) == (at_once, at_once, later)
    assert errors.is_loss_certain == (at_once is not None)


def test_errors_that_follow_one_another_last_from_the_first_one_on() -> None:
    errors = after(answer(999), answer(ReturnCode.TIMEOUT), answer(999))
    assert errors.loss(30) is GpuLoss.NVML_ERRORS
    assert errors.since == START + timedelta(seconds=20)
    assert after(answer(999), None, answer(999)).loss(49) is None


def test_another_gpu_in_its_place_is_not_a_lost_gpu() -> None:
    assert after(ValueError("another GPU is in its place")).loss(1000) is None
