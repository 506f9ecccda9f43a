# SPDX-License-Identifier: Apache-2.0
"""Whoever has a GPU open keeps it; the numbers are those of the acceptance cases.

An unbind waits for its last user without end and cannot be taken back, so nothing is written while
a process is known to use the GPU.
"""

import asyncio
import signal
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from nvdra_api.ids import PodUID
from nvdra_api.resource.claims import ClaimRef
from nvdra_testing.node import device_holders
from nvdra_testing.node.passthrough_rig import PassthroughRig

VFIO, NVIDIA = "vfio-pci", "nvidia"
BUSY = "VfioDeviceBusy: "
AT_ONCE_S = 5.0
"""An answer takes 0.3 s. On a busy machine it may take longer, but not as long as any wait."""
HEAL_S = 40.0
"""What is left of a claim is tried again every ten seconds."""


async def prepared(rig: PassthroughRig, claim: ClaimRef) -> None:
    """Prepare a claim, which must succeed."""
    answer = (await rig.dra.prepare([claim]))[claim.uid]
    assert not answer.error, answer.error


async def unprepared(rig: PassthroughRig, claim: ClaimRef) -> None:
    """Unprepare a claim, which must succeed."""
    answer = (await rig.dra.unprepare([claim]))[claim.uid]
    assert not answer.error, answer.error


def is_untouched(rig: PassthroughRig, index: int) -> bool:
    """Whether nothing was done to a GPU."""
    return (rig.driver_of(index), rig.override_of(index)) == (NVIDIA, "(null)")


def children(pid: int) -> set[int]:
    """The processes that a process has started and that have not ended."""
    found: set[int] = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):
            found |= {int(word) for word in (thread / "children").read_text().split()}
    return found


async def test_a_process_in_a_container_of_its_own_is_named_at_once_and_the_gpu_stays(
    vfio_rig: PassthroughRig, tmp_path: Path
) -> None:
    """Cases 6 and 8."""
    rig, pod = vfio_rig, PodUID(str(uuid4()))
    await rig.start_passing()
    wanted, other = rig.create_claim("gpu-vfio-1"), rig.create_claim("gpu-2")
    node = rig.served.roots.dev / "nvidia1"
    with device_holders.opened_in_pod(node, tmp_path, pod) as pid:
        start = time.monotonic()
        async with asyncio.TaskGroup() as group:
            refused = group.create_task(rig.dra.prepare([wanted]))
            group.create_task(prepared(rig, other))
        assert time.monotonic() - start < AT_ONCE_S
        error = (await refused)[wanted.uid].error
        assert error.startswith(BUSY)
        assert f"(pid {pid})" in error
        assert "gpu-vfio-1" in error
        assert pod not in error, "it may be of another namespace"
        assert f"of pod {pod}, container {'ab' * 32}" in rig.process.log.read_text()
        assert is_untouched(rig, 1)
        assert wanted.uid not in rig.recorded_claims()
    await prepared(rig, wanted)
    assert rig.driver_of(1) == VFIO
    await unprepared(rig, wanted)
    assert is_untouched(rig, 1)


async def test_a_process_that_has_kept_only_a_mapping_is_found(
    vfio_rig: PassthroughRig, tmp_path: Path
) -> None:
    """Case 7."""
    rig = vfio_rig
    await rig.start_passing()
    claim = rig.create_claim("gpu-vfio-1")
    with device_holders.mapped(tmp_path / "dev/nvidia1") as pid:
        error = (await rig.dra.prepare([claim]))[claim.uid].error
        assert error.startswith(BUSY)
        assert f"(pid {pid})" in error
        assert is_untouched(rig, 1)


async def test_an_unbind_that_waits_is_answered_and_others_go_on(
    vfio_rig: PassthroughRig,
) -> None:
    """Case 9, of a client that no process shows."""
    rig = vfio_rig
    await rig.start_passing()
    stuck = rig.create_claim("gpu-vfio-1")
    rig.node.simctl("gpu", "kernel-client", "1", "on")
    start = time.monotonic()
    error = (await rig.dra.prepare([stuck]))[stuck.uid].error
    assert error.startswith(BUSY)
    assert time.monotonic() - start < 4 * AT_ONCE_S, "not as long as giving a GPU back may take"
    assert rig.driver_of(1) is None
    start = time.monotonic()
    async with asyncio.TaskGroup() as group:
        again = group.create_task(rig.dra.prepare([stuck]))
        for device in ("gpu-0", "gpu-vfio-2"):
            group.create_task(prepared(rig, rig.create_claim(device)))
    assert time.monotonic() - start < AT_ONCE_S
    assert (await again)[stuck.uid].error.startswith(BUSY)
    assert not rig.spans(stuck, "close sessions")[1:], "NVML stays open while nothing can be done"
    rig.node.simctl("gpu", "kernel-client", "1", "off")
    await rig.wait_until(lambda: not children(rig.process.process.pid), "the write to return")
    await prepared(rig, stuck)
    assert rig.driver_of(1) == VFIO
    await unprepared(rig, stuck)
    assert is_untouched(rig, 1)


async def test_a_start_during_an_unbind_writes_nothing_until_it_is_over(
    vfio_rig: PassthroughRig,
) -> None:
    """Case 10."""
    rig = vfio_rig
    await rig.start_passing()
    stuck = rig.create_claim("gpu-vfio-1")
    rig.node.simctl("gpu", "kernel-client", "1", "on")
    assert (await rig.dra.prepare([stuck]))[stuck.uid].error.startswith(BUSY)
    await rig.stop(signal.SIGKILL)
    await rig.start_passing()
    reported = "What was done for a claim cannot be undone yet"
    await rig.wait_until(lambda: reported in rig.process.log.read_text(), "it to be reported")
    assert not children(rig.process.process.pid), "a bind would block now, and could not be ended"
    assert rig.driver_of(1) is None
    await prepared(rig, rig.create_claim("gpu-0"))
    rig.node.simctl("gpu", "kernel-client", "1", "off")
    await rig.wait_until(lambda: is_untouched(rig, 1), "the GPU to come back", HEAL_S)
    await rig.wait_until(lambda: stuck.uid not in rig.recorded_claims(), "the record", HEAL_S)


async def test_a_virtual_machine_that_outlives_its_pod_keeps_the_gpu_until_it_ends(
    vfio_rig: PassthroughRig,
) -> None:
    """Case 26."""
    rig = vfio_rig
    await rig.start_passing()
    claim = rig.create_claim("gpu-vfio-1")
    await prepared(rig, claim)
    group = (rig.served.device(1) / "iommu_group").readlink().name
    command = (*rig.served.vmm, "--leak", "device", group, rig.served.address(1))
    with device_holders.leaked(command) as pid:
        answer = (await rig.dra.unprepare([claim]))[claim.uid].error
        assert answer.startswith(BUSY)
        assert f"(pid {pid})" in answer
        assert (rig.driver_of(1), rig.override_of(1)) == (VFIO, VFIO)
        await rig.stop()
        await rig.start_passing()
        assert (await rig.dra.unprepare([claim]))[claim.uid].error.startswith(BUSY)
        assert rig.driver_of(1) == VFIO
    await rig.wait_until(lambda: is_untouched(rig, 1), "the GPU to come back", HEAL_S)
    await unprepared(rig, claim)
    assert not rig.recorded_claims()
