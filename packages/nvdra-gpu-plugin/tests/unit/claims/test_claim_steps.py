# SPDX-License-Identifier: Apache-2.0
"""Claims whose devices are made: what their records say at each moment, and what is left after."""

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from nvdra_api import names
from nvdra_api.errors import DriverError, Reason, RetryableError
from nvdra_api.ids import ClaimUID
from nvdra_cdi import files
from nvdra_gpu_plugin.claims.claimed_gpus import gpus_of
from nvdra_gpu_plugin.hardware.probe_state import ProbeState
from nvdra_runtime.node.nvml import ReturnCode
from nvdra_runtime.process import background_tasks
from nvdra_testing import polling
from nvdra_testing.hardware.divisible_gpus import DivisiblePynvml
from nvdra_testing.node.divisible_node import GPUS, DivisibleNode

WHOLE = "gpu-0"
LARGE, SMALL, OTHER = "gpu-0-mig-3g40gb-9-4", "gpu-0-mig-1g10gb-19-0", "gpu-1-mig-3g40gb-9-4"
UID, NEXT_UID = ClaimUID("uid-1"), "uid-2"
CREATE, CREATE_COMPUTE, DESTROY, DESTROY_COMPUTE, SWITCH = (
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceDestroy",
    "nvmlComputeInstanceDestroy",
    "nvmlDeviceSetMigMode",
)


@pytest.fixture
def node(tmp_path: Path) -> DivisibleNode:
    return DivisibleNode(tmp_path)


async def reason_of(call: Any) -> Reason:
    with pytest.raises(DriverError) as caught:
        await call
    return caught.value.reason


async def test_a_claim_has_its_devices_its_spec_and_a_record_that_is_an_answer(
    node: DivisibleNode,
) -> None:
    async with node.opened() as plugin:
        result = await plugin.prepare(LARGE, OTHER)
        record = plugin.prepared[UID]
        assert not plugin.prepared.is_started(UID)
        assert node.places == [(2, 4, 1), (2, 4, 1)]
        assert node.specs == ["k8s.gpu.nvidia.com-claim-device_uid-1.yaml"]
        assert [device.uuid for device in record.devices] == ["MIG-GPU-0-2-0", "MIG-GPU-1-2-0"]
        assert result == record.prepare_result()
        assert result.devices[0].cdi_ids == (f"k8s.gpu.nvidia.com/claim-device=uid-1-{LARGE}",)
        assert not record.is_foreign
        assert plugin.index.made_on(GPUS[0].uuid) == {(9, 4)}
        await plugin.unprepare()
        assert node.is_clean()
        assert plugin.index.made_on(GPUS[0].uuid) == frozenset()


async def test_the_record_is_started_on_the_disk_before_anything_is_done(
    node: DivisibleNode,
) -> None:
    seen: list[list[tuple[str]]] = []
    switch = DivisiblePynvml._nvmlDeviceSetMigMode

    class Looking(DivisiblePynvml):
        def _nvmlDeviceSetMigMode(self, *arguments: Any) -> Any:
            with closing(sqlite3.connect(node.root / "state.sqlite")) as connection:
                seen.append(list(connection.execute("SELECT uid FROM started_records")))
                assert not list(connection.execute("SELECT uid FROM records"))
            return switch(self, *arguments)

    node.pynvml = Looking()
    async with node.opened() as plugin:
        await plugin.prepare(LARGE)
        assert not plugin.prepared.started
        await plugin.unprepare()
    assert seen == [[(UID,)], [(UID,)]], "mode on, and off again"


@pytest.mark.parametrize("function", [CREATE, CREATE_COMPUTE, "nvmlDeviceSetMigMode"])
async def test_a_failure_on_one_gpu_undoes_what_was_done_on_the_other(
    node: DivisibleNode, function: str
) -> None:
    async with node.opened() as plugin:
        node.pynvml.failures[function] = [0, 999]
        assert await reason_of(plugin.prepare(LARGE, OTHER)) is Reason.DEVICE_UNHEALTHY
        assert node.is_clean()
        assert dict(plugin.prepared) == {}


async def test_a_claim_without_a_spec_has_nothing(node: DivisibleNode) -> None:
    async with node.opened() as plugin:
        node.tree.remove("/proc/driver/nvidia/capabilities/gpu0/mig/gi2/access")
        assert await reason_of(plugin.prepare(LARGE)) is Reason.DEVICE_NODE_MISSING
        assert node.is_clean()
        assert dict(plugin.prepared) == {}


@pytest.mark.parametrize(
    ("fault", "remedy"),
    [
        ("capabilities", "global.procRoot"),
        ("device node", "nvidia-modprobe"),
        ("file", "--cdi-root is a writable directory"),
    ],
)
async def test_a_spec_that_cannot_be_written_has_the_remedy_of_its_cause(
    node: DivisibleNode, fault: str, remedy: str
) -> None:
    async with node.opened() as plugin:
        if fault == "capabilities":
            node.tree.file("/proc/devices", b"Character devices:\n195 nvidia\n")
        elif fault == "device node":
            node.tree.remove("/dev/nvidia0")
        else:
            name = files.transient_name(names.GPU_CDI_VENDOR, "claim-device", UID)
            (node.cdi / name).mkdir()
        with pytest.raises(DriverError) as caught:
            await plugin.prepare(LARGE)
    assert caught.value.reason is Reason.DEVICE_NODE_MISSING
    assert "the CDI spec of claim" in caught.value.message
    assert remedy in caught.value.event_text


async def test_what_cannot_be_undone_keeps_its_place_and_is_finished_by_the_retry(
    node: DivisibleNode,
) -> None:
    async with node.opened() as plugin:
        node.pynvml.failures[CREATE_COMPUTE] = [999]
        node.pynvml.failures[DESTROY] = [ReturnCode.IN_USE]
        await reason_of(plugin.prepare(LARGE))
        assert plugin.prepared.is_started(UID)
        assert plugin.engine.left_over == [plugin.prepared[UID]]
        (device,) = plugin.prepared[UID].devices
        assert plugin.index.conflicting_claim(device, ClaimUID("other")) is not None
        await plugin.prepare(LARGE)
        assert not plugin.prepared.is_started(UID)
        assert node.pynvml.changes.count(CREATE) == 1
        await plugin.unprepare()
        assert node.is_clean()


async def test_a_claim_whose_unprepare_has_failed_is_prepared_again(node: DivisibleNode) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(LARGE)
        node.pynvml.failures[DESTROY_COMPUTE] = [ReturnCode.IN_USE]
        assert await reason_of(plugin.unprepare()) is Reason.DEVICE_IN_USE
        assert plugin.prepared.is_started(UID)
        await plugin.prepare(LARGE)
        assert not plugin.prepared.is_started(UID)
        assert node.pynvml.changes.count(CREATE) == 1
        await plugin.unprepare()
        assert node.is_clean()


async def test_another_allocation_of_the_claim_does_not_inherit_what_was_left(
    node: DivisibleNode,
) -> None:
    async with node.opened() as plugin:
        node.pynvml.failures[CREATE_COMPUTE] = [999]
        node.pynvml.failures[DESTROY] = [ReturnCode.IN_USE]
        await reason_of(plugin.prepare(LARGE))
        await plugin.prepare(SMALL)
        assert node.places == [(0, 0, 1)]


async def test_a_successor_finds_what_to_undo(node: DivisibleNode) -> None:
    async with node.opened() as plugin:
        node.pynvml.failures[CREATE_COMPUTE] = [999]
        node.pynvml.failures[DESTROY] = [ReturnCode.IN_USE]
        await reason_of(plugin.prepare(LARGE))
    async with node.opened() as plugin:
        (left,) = plugin.engine.left_over
        await plugin.engine.revert(left)
        assert node.is_clean()
        assert plugin.engine.left_over == []


async def test_a_destruction_that_was_interrupted_is_no_answer_any_more(
    node: DivisibleNode,
) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(LARGE)
        node.pynvml.failures[DESTROY] = [ReturnCode.IN_USE]
        assert await reason_of(plugin.unprepare()) is Reason.DEVICE_IN_USE
    async with node.opened() as plugin:
        assert plugin.prepared.is_started(UID)
        assert node.places == [(2, 4, 0)]
        await plugin.unprepare()
        assert node.is_clean()


async def test_after_a_reboot_everything_is_made_again_at_its_place(node: DivisibleNode) -> None:
    async with node.opened() as plugin:
        before = await plugin.prepare(LARGE, OTHER)
    node.reboot()
    async with node.opened() as plugin:
        again = await plugin.engine.restore(plugin.prepared[UID])
        assert again.prepare_result() == before
        assert node.places == [(2, 4, 1), (2, 4, 1)]
        assert plugin.prepared[UID] == again
        changes = len(node.pynvml.changes)
        assert await plugin.engine.restore(again) == again
        assert len(node.pynvml.changes) == changes
        await plugin.unprepare()
        assert node.is_clean()


async def test_making_again_that_fails_is_repeated_and_takes_its_own_for_its_own(
    node: DivisibleNode,
) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(LARGE)
    node.reboot()
    node.pynvml.failures[CREATE_COMPUTE] = [999]
    async with node.opened() as plugin:
        await reason_of(plugin.engine.restore(plugin.prepared[UID]))
        assert not plugin.prepared.is_started(UID)
    async with node.opened() as plugin:
        await plugin.engine.restore(plugin.prepared[UID])
        assert node.places == [(2, 4, 1)]


async def test_an_instance_of_this_boot_is_not_the_one_of_an_earlier_boot(
    node: DivisibleNode,
) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(LARGE)
    node.reboot()
    node.gpus[0].add(2, 4)
    async with node.opened() as plugin:
        call = plugin.engine.restore(plugin.prepared[UID])
        assert await reason_of(call) is Reason.UNKNOWN_DEVICE
        await plugin.unprepare()
        assert node.places == [(2, 4, 1)]
        assert dict(plugin.prepared) == {}


async def test_a_mode_that_an_administrator_has_switched_on_stays_on(node: DivisibleNode) -> None:
    node.gpus[0].mode = True
    async with node.opened() as plugin:
        await plugin.prepare(LARGE)
        await plugin.prepare(SMALL, uid=NEXT_UID)
        await plugin.prepare(OTHER, uid="uid-3")
        for uid in (UID, NEXT_UID, "uid-3"):
            await plugin.unprepare(uid)
        assert [gpu.mode for gpu in node.gpus[:2]] == [True, False]


async def test_a_mode_that_a_claim_has_switched_on_is_not_an_administrators(
    node: DivisibleNode,
) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(LARGE)
        await plugin.prepare(SMALL, uid=NEXT_UID)
        await plugin.unprepare()
        await plugin.unprepare(NEXT_UID)
        assert not node.gpus[0].mode


async def test_a_mode_that_a_claim_has_switched_on_stays_if_the_node_keeps_it(
    node: DivisibleNode,
) -> None:
    async with node.opened(keeps_mig_mode=True) as plugin:
        await plugin.prepare(LARGE)
        await plugin.unprepare()
        assert node.places == []
        assert node.gpus[0].mode
        await plugin.prepare(WHOLE)
        assert not node.gpus[0].mode


@pytest.mark.parametrize(("device", "is_on"), [(LARGE, False), (WHOLE, True)])
async def test_a_gpu_that_cannot_be_switched_is_noted_until_it_can(
    node: DivisibleNode, device: str, is_on: bool
) -> None:
    node.gpus[0].mode = is_on
    async with node.opened() as plugin:
        node.pynvml.failures[SWITCH] = [ReturnCode.IN_USE]
        assert await reason_of(plugin.prepare(device)) is Reason.DEVICE_IN_USE
        assert plugin.mode_refusals.kept_modes == {node.gpus[0].uuid: is_on}
        await plugin.prepare(device)
        assert plugin.mode_refusals.kept_modes == {}


async def test_a_mode_that_a_monitor_keeps_holds_no_place_and_is_left_later(
    node: DivisibleNode,
) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(LARGE)
        node.pynvml.failures[SWITCH] = [ReturnCode.IN_USE] * 20
        await plugin.unprepare()
        assert node.places == []
        assert node.specs == []
        assert plugin.prepared.held == []
        assert plugin.mode_refusals.kept_modes == {node.gpus[0].uuid: True}
        assert gpus_of(plugin.prepared[UID]) == {GPUS[0].pci}
        await plugin.prepare(LARGE, uid=NEXT_UID)
        assert [each.uid for each in plugin.prepared.values()] == [UID, NEXT_UID]
        node.pynvml.failures.clear()
        await plugin.unprepare(NEXT_UID)
        assert not node.gpus[0].mode
        await plugin.recovery._recover([UID])
        assert dict(plugin.prepared) == {}
        assert plugin.mode_refusals.kept_modes == {}


async def test_a_mode_that_a_monitor_keeps_is_not_an_administrators_after_a_restart(
    node: DivisibleNode,
) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(LARGE)
        node.pynvml.failures[SWITCH] = [ReturnCode.IN_USE] * 2
        await plugin.unprepare()
    async with node.opened() as plugin:
        await plugin.prepare(LARGE)
        assert node.gpus[0].mode
        await plugin.unprepare()
        assert not node.gpus[0].mode
        assert dict(plugin.prepared) == {}


async def test_a_failed_prepare_beside_a_monitor_leaves_the_mode_alone(
    node: DivisibleNode,
) -> None:
    async with node.opened() as plugin:
        node.pynvml.failures[CREATE] = [999]
        node.pynvml.failures[SWITCH] = [0, ReturnCode.IN_USE]
        await reason_of(plugin.prepare(LARGE))
        assert plugin.prepared[UID].left_modes
        assert plugin.prepared.held == []
        await plugin.recovery._recover([UID])
        assert not node.gpus[0].mode
        assert dict(plugin.prepared) == {}


async def test_a_device_that_somebody_destroyed_is_made_again(node: DivisibleNode) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(LARGE)
        node.gpus[0].instances.clear()
        await plugin.engine.restore(plugin.prepared[UID])
        assert node.places == [(2, 4, 1)]


async def test_who_uses_a_device_that_was_destroyed_is_told_once(node: DivisibleNode) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(LARGE, OTHER)
        assert plugin.told == plugin.reported == []
        node.gpus[0].instances.clear()
        node.pynvml.failures[CREATE] = [999]
        for _ in range(2):
            await plugin.recovery._recover([UID])
        assert node.places == [(2, 4, 1), (2, 4, 1)]
        (text,) = plugin.told
        assert text.startswith(f"{UID}: DeviceUnhealthy: {LARGE}, made for a claim")
        assert OTHER not in text
        assert len(plugin.reported) == 2, "and that it could not be made again at first"
        node.gpus[1].instances.clear()
        await plugin.recovery._recover([UID])
        assert len(plugin.told) == 2
        await plugin.unprepare()
        assert node.is_clean()


async def test_after_a_reboot_nobody_is_told_that_devices_were_destroyed(
    node: DivisibleNode,
) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(LARGE)
    node.reboot()
    async with node.opened() as plugin:
        await plugin.recovery._recover([UID])
        assert node.places == [(2, 4, 1)]
        assert plugin.told == plugin.reported == []


@pytest.mark.parametrize("index", [2, 1], ids=["the same profile", "another one"])
async def test_what_somebody_has_made_in_the_place_of_a_destroyed_device_is_left_alone(
    node: DivisibleNode, index: int
) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(LARGE)
        node.gpus[0].instances.clear()
        theirs = node.gpus[0].add(index, 4)
        theirs.computes[0].uuid = "MIG-theirs"
        for _ in range(2):
            assert not await plugin.recovery._recover([UID])
        assert node.places == [(index, 4, 1)]
        assert len(plugin.told) == 1
        assert "which no claim has made" in plugin.reported[-1]
        node.gpus[0].instances.clear()
        assert await plugin.recovery._recover([UID])
        assert node.places == [(2, 4, 1)]
        await plugin.unprepare()
        assert node.is_clean()


async def test_what_somebody_makes_after_a_failed_attempt_is_left_alone_too(
    node: DivisibleNode,
) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(LARGE)
        node.gpus[0].instances.clear()
        node.pynvml.failures[CREATE] = [999]
        assert not await plugin.recovery._recover([UID])
        theirs = node.gpus[0].add(2, 4)
        theirs.computes[0].uuid = "MIG-theirs"
        assert not await plugin.recovery._recover([UID])
        assert "which no claim has made" in plugin.reported[-1]
        await plugin.unprepare()
        assert node.places == [(2, 4, 1)]


async def test_of_a_device_that_is_half_destroyed_the_rest_is_used(node: DivisibleNode) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(LARGE)
        node.gpus[0].instances[2].computes.clear()
        await plugin.recovery._recover([UID])
        assert node.places == [(2, 4, 1)]
        assert node.pynvml.changes.count(CREATE) == 1
        assert len(plugin.told) == 1


async def test_a_foreign_instance_is_neither_adopted_nor_destroyed(node: DivisibleNode) -> None:
    node.gpus[0].add(2, 4)
    async with node.opened() as plugin:
        for _ in range(2):
            assert await reason_of(plugin.prepare(LARGE)) is Reason.UNKNOWN_DEVICE
            assert dict(plugin.prepared) == {}
        assert node.places == [(2, 4, 1)]


async def test_gpus_are_divided_side_by_side(node: DivisibleNode) -> None:
    both = threading.Barrier(2, timeout=5)
    create = DivisiblePynvml._nvmlDeviceCreateGpuInstanceWithPlacement

    class Slow(DivisiblePynvml):
        def _nvmlDeviceCreateGpuInstanceWithPlacement(self, *arguments: Any) -> Any:
            both.wait()
            return create(self, *arguments)

    node.pynvml = Slow()
    async with node.opened() as plugin:
        async with asyncio.timeout(5):
            await plugin.prepare(LARGE, OTHER)
        assert len(node.places) == 2


async def test_a_whole_gpu_in_mig_mode_is_switched_and_the_record_says_so(
    node: DivisibleNode,
) -> None:
    node.gpus[0].mode = True
    async with node.opened() as plugin:
        await plugin.prepare(WHOLE)
        assert not node.gpus[0].mode
        assert [step.step for step in plugin.prepared[UID].steps] == ["disable-mig-mode"]
        assert not plugin.prepared.is_started(UID)
        await plugin.unprepare()
        node.pynvml.changes.clear()
        await plugin.prepare(WHOLE)
        assert plugin.prepared[UID].steps == ()
        assert node.pynvml.changes == []


async def test_a_whole_gpu_that_an_administrator_has_divided_is_not_given(
    node: DivisibleNode,
) -> None:
    node.gpus[0].add(0, 3, computes=0)
    async with node.opened() as plugin:
        assert await reason_of(plugin.prepare(WHOLE)) is Reason.UNKNOWN_DEVICE
        assert node.places == [(0, 3, 0)]
        assert dict(plugin.prepared) == {}


async def test_a_mode_that_cannot_be_switched_now_leaves_no_record(node: DivisibleNode) -> None:
    node.gpus[0].mode = True
    async with node.opened() as plugin:
        node.pynvml.failures[SWITCH] = [ReturnCode.IN_USE]
        assert await reason_of(plugin.prepare(WHOLE)) is Reason.DEVICE_IN_USE
        assert dict(plugin.prepared) == {}


async def test_claims_that_meet_at_one_gpu_get_their_places_or_a_holder(
    node: DivisibleNode,
) -> None:
    async with node.opened() as plugin:
        wanted = {"uid-1": LARGE, "uid-2": SMALL, "uid-3": WHOLE, "uid-4": LARGE}
        reasons: dict[str, Reason] = {}

        async def prepare(uid: str, device: str) -> None:
            try:
                await plugin.prepare(device, uid=uid)
            except DriverError as error:
                reasons[uid] = error.reason

        async with asyncio.TaskGroup() as group:
            for uid, device in wanted.items():
                group.create_task(prepare(uid, device))
        assert reasons == {"uid-3": Reason.DEVICE_IN_USE, "uid-4": Reason.DEVICE_IN_USE}
        assert node.places == [(0, 0, 1), (2, 4, 1)]
        await plugin.unprepare("uid-1")
        await plugin.prepare(LARGE, uid="uid-4")
        await plugin.unprepare("uid-2")
        await plugin.unprepare("uid-4")
        assert node.is_clean()


async def test_a_repeated_prepare_makes_what_a_reboot_has_destroyed(node: DivisibleNode) -> None:
    async with node.opened() as plugin:
        before = await plugin.prepare(LARGE)
        assert await plugin.prepare(LARGE) == before
        assert node.pynvml.count[CREATE] == 1
    node.reboot()
    async with node.opened() as plugin:
        assert await plugin.prepare(LARGE) == before
        assert node.places == [(2, 4, 1)]


async def test_what_was_left_on_a_gpu_is_undone_before_another_claim_of_it_is_answered(
    node: DivisibleNode,
) -> None:
    async with node.opened() as plugin:
        node.pynvml.failures[CREATE_COMPUTE] = [999]
        node.pynvml.failures[DESTROY] = [ReturnCode.IN_USE]
        await reason_of(plugin.prepare(LARGE))
    async with node.opened() as plugin:
        await plugin.prepare(SMALL, uid=NEXT_UID)
        assert node.places == [(0, 0, 1)]
        assert set(plugin.prepared) == {NEXT_UID}


async def test_what_cannot_be_undone_yet_keeps_only_its_own_place_and_is_told(
    node: DivisibleNode,
) -> None:
    async with node.opened() as plugin:
        node.pynvml.failures[CREATE_COMPUTE] = [999]
        node.pynvml.failures[DESTROY] = [ReturnCode.IN_USE] * 2
        await reason_of(plugin.prepare(LARGE))
        await plugin.prepare(SMALL, uid=NEXT_UID)
        assert node.places == [(0, 0, 1), (2, 4, 0)]
        (text,) = plugin.reported
        assert text.startswith("DeviceInUse: what was done for a claim cannot be undone yet: ")


async def test_at_the_start_all_claims_are_as_they_should_be(node: DivisibleNode) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(LARGE)
        await plugin.prepare(OTHER, uid=NEXT_UID)
        node.pynvml.failures[DESTROY] = [ReturnCode.IN_USE]
        await reason_of(plugin.unprepare(NEXT_UID))
    node.gpus[0].instances.clear()
    async with node.opened() as plugin:
        async with background_tasks.running(recovery=plugin.recovery._recover_repeatedly):
            await polling.wait_until(
                lambda: set(plugin.prepared) == {UID} and node.places == [(2, 4, 1)]
            )
        assert not plugin.prepared.started
        assert not node.gpus[1].mode


async def test_while_nvml_is_released_nothing_is_made_or_destroyed(node: DivisibleNode) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(LARGE)
        plugin.gate.close(RetryableError(Reason.NVML_RELEASED, "an administrator works"))
        node.pynvml.changes.clear()
        await plugin.unprepare()
        assert node.pynvml.changes == []
        assert plugin.prepared[UID].is_released
        plugin.gate.open()
        await plugin.prepare(LARGE, uid=NEXT_UID)
        assert UID not in plugin.prepared, "what is left goes before its place is given away"
        await plugin.unprepare(NEXT_UID)
        assert node.is_clean()


async def test_a_claim_whose_gpu_is_gone_is_unprepared(node: DivisibleNode) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(OTHER)
        plugin.monitor.session.probes = plugin.monitor.probes[:1]
        await plugin.unprepare()
        assert dict(plugin.prepared) == {}
        assert node.specs == []


async def test_a_gpu_that_is_only_silent_is_not_taken_for_gone(node: DivisibleNode) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(OTHER)
        plugin.monitor.probes[1].state = ProbeState(1)
        await plugin.unprepare()
        assert plugin.prepared.is_started(UID)
        assert plugin.prepared[UID].is_released


@pytest.mark.parametrize(("used", "broken"), [(0, 1), (1, 0)])
async def test_a_process_on_one_gpu_keeps_a_claim_whose_other_gpu_is_broken(
    node: DivisibleNode, used: int, broken: int
) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(LARGE, OTHER)
        (instance,) = node.gpus[used].instances
        node.pynvml.processes.add((node.gpus[used].uuid, instance))
        plugin.monitor.probes[broken].state = ProbeState(broken)
        node.pynvml.failures[DESTROY] = [ReturnCode.IN_USE]
        assert await reason_of(plugin.unprepare()) == Reason.DEVICE_IN_USE
        assert not plugin.prepared[UID].is_released
        node.pynvml.processes.clear()
        await plugin.unprepare()
        assert plugin.prepared[UID].is_released


async def test_who_monitors_a_gpu_leaves_its_mig_mode_and_the_devices_of_others_alone(
    node: DivisibleNode,
) -> None:
    async with node.opened() as plugin:
        before = await plugin.prepare(WHOLE, uid=NEXT_UID, is_admin=True)
        await plugin.prepare(LARGE)
        changes = list(node.pynvml.changes)
        assert await plugin.prepare(WHOLE, uid=NEXT_UID) == before, "the kubelet asks again"
        await plugin.prepare(WHOLE, uid="uid-3", is_admin=True)
        assert plugin.prepared[ClaimUID("uid-3")].steps == ()
        await plugin.unprepare("uid-3")
        await plugin.unprepare(NEXT_UID)
        assert node.pynvml.changes == changes
        await plugin.unprepare()
        assert node.is_clean()
