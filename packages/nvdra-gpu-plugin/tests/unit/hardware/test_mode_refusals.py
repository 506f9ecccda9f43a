# SPDX-License-Identifier: Apache-2.0
"""After a refused switch of a MIG mode, what needs the other mode is not offered for a while."""

import asyncio
from typing import Any

import pytest
from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.ids import DeviceName, GpuUUID, NodeName
from nvdra_gpu_plugin.hardware import mode_refusals
from nvdra_gpu_plugin.hardware.mode_refusals import ModeRefusals

GPU, OTHER = GpuUUID("GPU-0"), GpuUUID("GPU-1")
DEVICE = DeviceName("gpu-0-mig-3g40gb-9-4")
IN_USE = RetryableError(Reason.DEVICE_IN_USE, "a program uses the GPU", "stop it")


class Seen:
    """What was reported, and how often what is offered has changed."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.changes = 0
        self.changed = asyncio.Event()
        recorder: Any = self
        self.refusals = ModeRefusals(NodeName("node-a"), recorder)
        self.refusals.on_change(self.note)

    def emit(self, objects: object, kind: str, reason: str, text: str) -> None:
        assert kind == "Warning"
        self.events.append((reason, text))

    def note(self) -> None:
        self.changes += 1
        self.changed.set()


async def test_it_is_reported_once_and_ends_when_the_gpu_was_switched() -> None:
    seen = Seen()
    for _ in range(2):
        seen.refusals.note_refused(GPU, DEVICE, IN_USE, is_on=True)
    assert seen.refusals.kept_modes == {GPU: False}
    assert seen.changes == 1
    ((reason, text),) = seen.events
    assert reason == "DeviceInUse"
    assert text.startswith("gpu-0 offers nothing that needs its MIG mode switched")
    assert text == seen.refusals.remark
    seen.refusals.note_mode(OTHER, is_on=True)
    seen.refusals.note_mode(GPU, is_on=False)  # as it has been all the time
    assert seen.refusals.kept_modes == {GPU: False}
    seen.refusals.note_mode(GPU, is_on=True)
    assert seen.refusals.kept_modes == {}
    assert seen.refusals.remark == ""
    assert seen.changes == 2


async def test_the_latest_refusal_counts() -> None:
    seen = Seen()
    seen.refusals.note_refused(GPU, DEVICE, IN_USE, is_on=True)
    seen.refusals.note_refused(GPU, DeviceName("gpu-0"), IN_USE, is_on=False)
    assert seen.refusals.kept_modes == {GPU: True}
    assert len(seen.events) == 2


async def test_it_ends_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode_refusals, "_LASTS_S", 0.01)
    seen = Seen()
    seen.refusals.note_refused(GPU, DEVICE, IN_USE, is_on=True)
    seen.changed.clear()
    await asyncio.wait_for(seen.changed.wait(), 5)
    assert seen.refusals.kept_modes == {}


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (PermanentError(Reason.MIG_MODE_REQUIRES_RESET, "a reset", "reset it"), {GPU: False}),
        (PermanentError(Reason.UNKNOWN_DEVICE, "an instance is there", "destroy it"), {}),
        (RetryableError(Reason.DEVICE_UNHEALTHY, "NVML error 999", "reset it"), {}),
    ],
)
async def test_only_what_is_about_the_mode_counts(
    error: DriverError, kept: dict[GpuUUID, bool]
) -> None:
    seen = Seen()
    seen.refusals.note_refused(GPU, DEVICE, error, is_on=True)
    assert seen.refusals.kept_modes == kept
