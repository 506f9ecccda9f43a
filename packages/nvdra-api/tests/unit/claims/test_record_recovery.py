# SPDX-License-Identifier: Apache-2.0
"""Records that were lost come back from the kubelet's checkpoint, before a device is given away."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import ClaimUID, NodeName, PodUID
from nvdra_api.meta import JsonObject
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.claims.kubelet_checkpoint import CheckpointClaim, KubeletCheckpoint
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.record_recovery import RecordRecovery
from nvdra_runtime.claims.records import DeviceRecord, PreparedClaimRecord
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.connection import JSON
from nvdra_runtime.kube.event_recorder import EventRecorder
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.process.clock import SystemClock
from nvdra_testing.kubelet import checkpoint_file
from nvdra_testing.kubelet.checkpoint_file import CheckpointFile

NODE = NodeName("node-a")
NO_ANSWER = RetryableError(Reason.API_UNAVAILABLE, "the API server does not answer")


class PortRecord(DeviceRecord):
    """A device of another driver."""

    kind: str = "port"

    @property
    def cdi_ids(self) -> tuple[str, ...]:
        return (f"example.com/port={self.device}",)


class PortClaimRecord(PreparedClaimRecord):
    devices: tuple[PortRecord, ...]


def ref(name: str) -> ClaimRef:
    return ClaimRef("ml", name, ClaimUID(f"uid-{name}"))


def answer(port: str) -> Any:
    """What the kubelet was answered for a claim with one port."""
    device = SimpleNamespace(
        pool_name=NODE,
        device_name=port,
        request_names=["port"],
        cdi_device_ids=[f"example.com/port={port}"],
        HasField=lambda _: False,
    )
    return SimpleNamespace(devices=[device])


def rebuilt(claim: CheckpointClaim) -> PortClaimRecord:
    return PortClaimRecord(
        namespace=claim.namespace,
        name=claim.name,
        uid=claim.uid,
        pods=claim.pods,
        devices=tuple(
            PortRecord(request=each.requests[0], pool=each.pool, device=each.device)
            for each in claim.devices(checkpoint_file.DRIVER)
        ),
    )


class ApiServer(Client):
    """Keeps the Events that are created, and the changes to them."""

    def __init__(self) -> None:
        self.events: list[JsonObject] = []

    async def create(
        self, path: str, body: JsonObject, deadline: float, *, normalized: bool = False
    ) -> JsonObject:
        del path, deadline, normalized
        self.events.append(body)
        return body

    async def patch(
        self,
        path: str,
        body: Any,
        deadline: float,
        content_type: str = "application/merge-patch+json",
        params: Mapping[str, str] | None = None,
        accept: str = JSON,
    ) -> JsonObject:
        del path, deadline, content_type, params
        self.events.append(body)
        return {}


@dataclass
class Setting:
    """A node and one process on it.

    Attributes:
        built: The names of the claims that each call was to build records of.
        failing: Claims whose records cannot be built yet.
    """

    kubelet: CheckpointFile
    store: RecordStore
    api: ApiServer = field(default_factory=ApiServer)
    built: list[list[str]] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.prepared = PreparedClaims(self.store, PortClaimRecord, lambda *_: None)
        self.events = EventRecorder(
            self.api, checkpoint_file.DRIVER, NODE, SystemClock().now, interval_s=0.0
        )
        self.recovery = RecordRecovery(
            checkpoint_file.DRIVER,
            NODE,
            self.store,
            self.prepared,
            KubeletCheckpoint(self.kubelet.root),
            self.build,
            self.events,
        )

    async def build(
        self, claims: Sequence[CheckpointClaim], deadline: float
    ) -> AsyncGenerator[PortClaimRecord, None]:
        assert deadline > now()
        self.built.append(sorted(claim.name for claim in claims))
        for claim in claims:
            if claim.name in self.failing:
                raise NO_ANSWER
            yield rebuilt(claim)

    async def complete(self) -> None:
        async with self.events.running():
            await self.recovery.complete(now() + 5.0)


def now() -> float:
    return asyncio.get_running_loop().time()


Open = Callable[[], Any]


@pytest.fixture
def kubelet(tmp_path: Path) -> CheckpointFile:
    """The kubelet's files, which say that it holds nothing."""
    state = CheckpointFile(tmp_path / "kubelet")
    state.write()
    return state


@pytest.fixture
def opened(tmp_path: Path, kubelet: CheckpointFile) -> Open:
    """Starts a process on the node."""

    @asynccontextmanager
    async def open_node() -> AsyncIterator[Setting]:
        path = tmp_path / "state.sqlite"
        async with RecordStore.open(path, "boot", SystemClock()) as store:
            yield Setting(kubelet, store)

    return open_node


@pytest.fixture
def damaged(tmp_path: Path, opened: Open) -> Open:
    """Starts a process on the node after its state file was damaged."""
    (tmp_path / "state.sqlite").write_text("this is no database" * 1000)
    return opened


async def test_records_that_the_kubelet_has_and_the_state_file_lacks_are_added(
    opened: Open, kubelet: CheckpointFile
) -> None:
    kubelet.add_claim(ref("lost"), answer("port-1"), pods=("pod-1", "pod-2"))
    kubelet.add_claim(ref("known"), answer("port-2"))
    kubelet.add_claim(ref("not answered yet"))
    async with opened() as setting:
        known = rebuilt(KubeletCheckpoint(kubelet.root).claims()[ref("known").uid])
        await setting.prepared.add(ref("known"), known)
        assert not setting.recovery.is_done
        await setting.complete()
        assert setting.recovery.is_done
        assert setting.built == [["lost"]]
        assert set(setting.prepared) == {ref("lost").uid, ref("known").uid}
        assert setting.prepared[ref("lost").uid].pods == (PodUID("pod-1"), PodUID("pod-2"))
    async with opened() as setting:
        assert set(setting.prepared) == {ref("lost").uid, ref("known").uid}
        assert setting.api.events == []


async def test_a_claim_that_only_other_drivers_have_prepared_gets_no_record(
    opened: Open, kubelet: CheckpointFile
) -> None:
    for name in ("theirs", "of both"):
        kubelet.add_claim(ref(name), answer("port-1"))
        state = kubelet.claims[ref(name).uid]["DriverState"]
        state["other.example.com"] = state[checkpoint_file.DRIVER]
    del kubelet.claims[ref("theirs").uid]["DriverState"][checkpoint_file.DRIVER]
    kubelet.write()
    async with opened() as setting:
        await setting.complete()
        assert setting.built == [["of both"]]
        assert set(setting.prepared) == {ref("of both").uid}
        assert [device.device for device in setting.prepared[ref("of both").uid].devices] == [
            "port-1"
        ]


async def test_the_records_are_compared_once(opened: Open, kubelet: CheckpointFile) -> None:
    kubelet.add_claim(ref("a"), answer("port-1"))
    async with opened() as setting:
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(setting.recovery.complete(now() + 5.0))
        await setting.prepared.remove(ref("a").uid)
        await setting.complete()
        assert setting.built == [["a"]]
        assert dict(setting.prepared) == {}


async def test_what_was_recovered_before_a_failure_is_kept_and_the_rest_follows(
    opened: Open, kubelet: CheckpointFile
) -> None:
    kubelet.add_claim(ref("a"), answer("port-1"))
    kubelet.add_claim(ref("b"), answer("port-2"))
    async with opened() as setting:
        setting.failing = {"b"}
        with pytest.raises(RetryableError) as caught:
            await setting.recovery.complete(now() + 5.0)
        assert caught.value is NO_ANSWER
        assert not setting.recovery.is_done
        assert set(setting.prepared) == {ref("a").uid}
        setting.failing = set()
        await setting.complete()
        assert setting.recovery.is_done
        assert setting.built == [["a", "b"], ["b"]]
        assert set(setting.prepared) == {ref("a").uid, ref("b").uid}


async def test_an_unreadable_record_is_recovered_or_else_removed(
    opened: Open, kubelet: CheckpointFile
) -> None:
    kubelet.add_claim(ref("held"), answer("port-1"))
    kubelet.add_claim(ref("asked"))
    async with opened() as setting:
        for name in ("held", "asked", "free"):
            await setting.store.put(ref(name), "prepared", "{}")
    async with opened() as setting:
        assert set(setting.prepared.unreadable.values()) == {ref("held"), ref("asked"), ref("free")}
        await setting.complete()
        assert setting.prepared.unreadable == {}
        assert set(setting.store.records()) == set(setting.prepared) == {ref("held").uid}


async def test_a_checkpoint_is_not_needed_if_every_record_can_be_read(
    opened: Open, kubelet: CheckpointFile
) -> None:
    kubelet.path.unlink()
    async with opened() as setting:
        await setting.recovery.run()
        assert setting.recovery.is_done
        assert setting.prepared.incomplete_reason == ""


async def test_without_a_checkpoint_an_unreadable_record_is_kept(
    opened: Open, kubelet: CheckpointFile
) -> None:
    kubelet.path.unlink()
    async with opened() as setting:
        setting.prepared.unreadable[ref("a").uid] = ref("a")
        await setting.complete()
        assert not setting.recovery.is_done
        assert setting.prepared.unreadable == {ref("a").uid: ref("a")}


async def test_after_damage_of_the_state_file_its_records_come_back_and_the_node_says_so(
    damaged: Open, kubelet: CheckpointFile
) -> None:
    kubelet.add_claim(ref("a"), answer("port-1"))
    async with damaged() as setting:
        marker = setting.store.recovery_marker
        await setting.complete()
        assert set(setting.prepared) == {ref("a").uid}
        assert setting.store.recovery_marker is None
        assert not marker.path.exists()
        (event,) = setting.api.events
        assert event["reason"] == Reason.STATE_CORRUPT
        assert (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == ("Node", NODE)
        assert "the records of 1 claims were recovered" in event["message"]


async def test_with_neither_state_file_nor_checkpoint_no_device_is_given_away(
    damaged: Open, kubelet: CheckpointFile
) -> None:
    kubelet.path.unlink()
    async with damaged() as setting:
        async with setting.events.running():
            for _ in range(2):
                await setting.recovery.complete(now() + 5.0)
        assert not setting.recovery.is_done
        reason = setting.prepared.incomplete_reason
        assert f"moved to {setting.store.recovery_marker.corrupt_file}" in reason
        (event,) = setting.api.events
        assert event["count"] == 1
        assert event["message"].startswith(f"no device is given to new claims: {reason}; make")
        kubelet.write()
        await setting.complete()
        assert setting.recovery.is_done
        assert setting.prepared.incomplete_reason == ""


async def test_an_administrator_who_removes_the_marker_ends_the_recovery(
    damaged: Open, kubelet: CheckpointFile
) -> None:
    kubelet.path.unlink()
    async with damaged() as setting:
        await setting.complete()
        setting.store.recovery_marker.path.unlink()
        await setting.complete()
        assert setting.recovery.is_done
        assert setting.prepared.incomplete_reason == ""
        assert setting.store.recovery_marker is None


async def test_a_call_that_cannot_wait_for_the_recovery_under_way_is_told_what_it_met_last(
    opened: Open, kubelet: CheckpointFile
) -> None:
    kubelet.add_claim(ref("a"), answer("port-1"))
    async with opened() as setting, asyncio.TaskGroup() as group:
        group.create_task(setting.recovery.complete(now() + 5.0))
        await asyncio.sleep(0)  # it begins
        with pytest.raises(RetryableError, match="have not been compared") as caught:
            await setting.recovery.complete(now())
        assert caught.value.reason is Reason.DEADLINE_EXCEEDED


async def test_a_marker_that_cannot_be_looked_at_has_not_been_removed(
    damaged: Open, kubelet: CheckpointFile, tmp_path: Path
) -> None:
    kubelet.path.unlink()
    (tmp_path / "loop").symlink_to("loop")
    async with damaged() as setting:
        marker = setting.store.recovery_marker
        setting.store.recovery_marker = replace(marker, path=tmp_path / "loop" / "marker")
        await setting.complete()
        assert not setting.recovery.is_done
        assert setting.prepared.incomplete_reason


async def test_a_marker_that_cannot_be_removed_is_tried_again(damaged: Open) -> None:
    async with damaged() as setting:
        path = setting.store.recovery_marker.path
        path.unlink()
        path.mkdir()
        with pytest.raises(RetryableError) as caught:
            await setting.recovery.complete(now() + 5.0)
        assert caught.value.reason is Reason.STATE_UNAVAILABLE
        path.rmdir()
        await setting.complete()
        assert setting.recovery.is_done
