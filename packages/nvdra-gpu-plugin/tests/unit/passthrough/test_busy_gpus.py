# SPDX-License-Identifier: Apache-2.0
"""GPUs that claims were refused because processes use them."""

import asyncio
from collections.abc import Mapping

import pytest
from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import PciAddress
from nvdra_gpu_plugin.passthrough.busy_gpus import LOOK_S, BusyGpus
from nvdra_testing import virtual_time

FIRST, SECOND = PciAddress("0000:3b:00.0"), PciAddress("0000:86:00.0")


def refuse(busy: BusyGpus, pci: PciAddress, reason: Reason, command: str = "") -> None:
    with pytest.raises(RetryableError), busy.noted(pci):
        raise RetryableError(reason, "no", command=command)


def test_a_gpu_that_is_in_use_is_noted_until_a_claim_gets_it() -> None:
    busy, changes = BusyGpus(), list[Mapping[PciAddress, str]]()
    busy.on_change(lambda: changes.append(dict(busy.commands)))
    refuse(busy, FIRST, Reason.VFIO_DEVICE_BUSY, command="dcgm")
    refuse(busy, FIRST, Reason.VFIO_DEVICE_BUSY, command="dcgm")
    refuse(busy, SECOND, Reason.VFIO_DEVICE_BUSY)
    with busy.noted(FIRST):
        pass
    assert changes == [{FIRST: "dcgm"}, {FIRST: "dcgm", SECOND: ""}, {SECOND: ""}]


def test_other_refusals_are_not_noted_and_take_no_note_away() -> None:
    busy = BusyGpus()
    refuse(busy, FIRST, Reason.VFIO_BIND_FAILED)
    assert busy.commands == {}
    refuse(busy, FIRST, Reason.VFIO_DEVICE_BUSY, command="dcgm")
    refuse(busy, FIRST, Reason.VFIO_BIND_FAILED)
    assert busy.commands == {FIRST: "dcgm"}


def test_each_is_looked_at_until_no_process_uses_it() -> None:
    """One look that fails keeps neither the others nor the next look from being made."""
    answers: dict[PciAddress, list[str | Exception | None]] = {
        FIRST: [RetryableError(Reason.VFIO_DEVICE_BUSY, "procfs"), "train", None],
        SECOND: [None],
    }
    formers = list[str]()
    states = list[tuple[float, Mapping[PciAddress, str]]]()

    async def look(pci: PciAddress, former: str) -> str | None:
        formers.append(former)
        answer = answers[pci].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def watched() -> None:
        busy, started = BusyGpus(), asyncio.get_running_loop().time()

        def note() -> None:
            states.append((asyncio.get_running_loop().time() - started, dict(busy.commands)))

        async with asyncio.TaskGroup() as group:
            running = group.create_task(busy.run(look))
            await asyncio.sleep(100)
            started = asyncio.get_running_loop().time()
            refuse(busy, FIRST, Reason.VFIO_DEVICE_BUSY, command="dcgm")
            refuse(busy, SECOND, Reason.VFIO_DEVICE_BUSY, command="dcgm")
            busy.on_change(note)
            await asyncio.sleep(100)
            running.cancel()

    virtual_time.run_with_virtual_time(watched)
    assert states == [
        (LOOK_S, {FIRST: "dcgm"}),
        (2 * LOOK_S, {FIRST: "train"}),
        (3 * LOOK_S, {}),
    ]
    assert formers == ["dcgm", "dcgm", "dcgm", "train"]
    assert answers == {FIRST: [], SECOND: []}, "nothing is looked at that is not in use"
