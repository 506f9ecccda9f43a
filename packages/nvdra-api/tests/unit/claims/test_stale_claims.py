# SPDX-License-Identifier: Apache-2.0
"""A prepared claim that is gone is unprepared, unless a pod may still use it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.ids import ClaimUID, DeviceName, PodUID, PoolName
from nvdra_api.resource.claims import ClaimRef, ResourceClaim
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.claims.kubelet_checkpoint import KubeletCheckpoint
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.records import DeviceRecord, PreparedClaimRecord
from nvdra_runtime.claims.stale_claims import StaleClaimCleanup
from nvdra_runtime.kube.client import Client
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.clock import SystemClock
from nvdra_testing.kubelet.checkpoint_file import CheckpointFile

DRIVER = "port.example.com"
POOL = PoolName("node-a")
POD = PodUID("pod-uid-1")


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


def record(name: str, port: str) -> PortClaimRecord:
    device = PortRecord(request="port", pool=POOL, device=DeviceName(port))
    return PortClaimRecord(
        namespace="ml", name=name, uid=ref(name).uid, pods=(POD,), devices=(device,)
    )


def claim(name: str, *ports: str, driver: str = DRIVER) -> ResourceClaim:
    results = [
        {"request": "port", "driver": driver, "pool": POOL, "device": port} for port in ports
    ]
    return ResourceClaim.model_validate(
        {
            "metadata": {"namespace": "ml", "name": name, "uid": ref(name).uid},
            "status": {"allocation": {"devices": {"results": results}}} if ports else {},
        }
    )


def gone(name: str) -> PermanentError:
    return PermanentError(Reason.CLAIM_NOT_FOUND, f"claim {ref(name)} does not exist")


class ApiServer(Client):
    """Answers with a claim or an error, once `answering` is set."""

    def __init__(self) -> None:
        self.answers: dict[ClaimUID, ResourceClaim | DriverError] = {}
        self.reads: Counter[ClaimUID] = Counter()
        self.answering = asyncio.Event()
        self.answering.set()
        self._read = asyncio.Condition()

    async def get_claim(self, ref: ClaimRef, deadline: float) -> ResourceClaim:
        del deadline
        async with self._read:
            self.reads[ref.uid] += 1
            self._read.notify_all()
        await self.answering.wait()
        answer = self.answers[ref.uid]
        if isinstance(answer, DriverError):
            raise answer
        return answer

    async def wait_read(self, name: str, times: int) -> None:
        """Wait until the claim has been read so often; then the reads before have their effect."""
        async with self._read:
            await self._read.wait_for(lambda: self.reads[ref(name).uid] >= times)


@dataclass
class Setting:
    """A node whose cleanup checks the claims without a pause."""

    kubelet: CheckpointFile
    prepared: PreparedClaims[PortClaimRecord]
    api: ApiServer = field(default_factory=ApiServer)
    unprepared: list[ClaimRef] = field(default_factory=list)
    failure: DriverError | None = None

    def __post_init__(self) -> None:
        self.wait_queue = DeviceWaitQueue(self.prepared.wait_removed)
        self.cleanup = StaleClaimCleanup(
            DRIVER,
            self.api,
            self.prepared,
            self.wait_queue,
            KubeletCheckpoint(self.kubelet.root),
            self.unprepare,
            period_s=0.0,
        )

    async def unprepare(self, ref: ClaimRef, deadline: float) -> None:
        assert deadline > asyncio.get_running_loop().time()
        self.unprepared.append(ref)
        if self.failure is not None:
            raise self.failure
        await self.prepared.remove(ref.uid)

    async def prepare(self, name: str, port: str, answer: ResourceClaim | DriverError) -> None:
        await self.prepared.add(ref(name), record(name, port))
        self.api.answers[ref(name).uid] = answer


Open = Callable[[], Any]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    """Opens the state file of a node whose kubelet holds nothing."""

    @asynccontextmanager
    async def open_node() -> AsyncIterator[Setting]:
        kubelet = CheckpointFile(tmp_path / "kubelet")
        kubelet.write()
        async with RecordStore.open(tmp_path / "state", "boot", SystemClock()) as store:
            yield Setting(kubelet, PreparedClaims(store, PortClaimRecord, lambda *_: None))

    return open_node


async def checked_twice(setting: Setting, name: str) -> None:
    """Let the cleanup check a claim to the end and begin again."""
    async with background_tasks.running(cleanup=setting.cleanup.run_periodically):
        await setting.api.wait_read(name, 2)


@pytest.mark.parametrize(
    "answer",
    [
        gone("a"),
        PermanentError(Reason.CLAIM_UID_CHANGED, "claim ml/a was replaced"),
        claim("a"),
        claim("a", "port-2"),
        claim("a", "port-1", driver="other.example.com"),
    ],
    ids=["deleted", "replaced", "not allocated", "another device", "another driver"],
)
async def test_a_claim_that_no_longer_has_its_devices_is_unprepared(
    opened: Open, answer: ResourceClaim | DriverError
) -> None:
    async with opened() as setting:
        await setting.prepare("a", "port-1", answer)
        async with background_tasks.running(cleanup=setting.cleanup.run_periodically):
            await setting.prepared.wait_removed(ref("a").uid)
        assert setting.unprepared == [ref("a")]


@pytest.mark.parametrize(
    "answer",
    [
        claim("a", "port-1"),
        claim("a", "port-1", "port-2"),
        RetryableError(Reason.API_UNAVAILABLE, "no answer"),
        PermanentError(Reason.INVALID_CONFIG, "no claim can be read"),
    ],
    ids=["allocated", "allocated with another", "no answer", "another error"],
)
async def test_a_claim_that_may_still_exist_stays_prepared(
    opened: Open, answer: ResourceClaim | DriverError
) -> None:
    async with opened() as setting:
        await setting.prepare("a", "port-1", answer)
        await checked_twice(setting, "a")
        assert setting.unprepared == []


@pytest.mark.parametrize("user", ["checkpoint", "pod directory", "unknown"])
async def test_a_claim_that_a_pod_may_use_stays_prepared_and_is_not_asked_for(
    opened: Open, user: str
) -> None:
    async with opened() as setting:
        await setting.prepare("a", "port-1", gone("a"))
        match user:
            case "checkpoint":
                setting.kubelet.add_claim(ref("a"), pods=(POD,))
            case "pod directory":
                setting.kubelet.create_pod_dir(POD)
            case _:
                setting.kubelet.path.write_text("damaged")
        async with background_tasks.running(
            rounds=setting.cleanup.run_periodically, other=setting.cleanup.check_blocking_claims
        ):
            setting.wait_queue.blocking_claims.put_nowait(ref("a").uid)
            await asyncio.sleep(0.2)  # many rounds
        assert setting.unprepared == []
        assert setting.api.reads == {}


async def test_of_many_claims_only_those_are_asked_for_that_the_kubelet_does_not_name(
    opened: Open,
) -> None:
    async with opened() as setting:
        for number in range(8):
            name = f"held-{number}"
            await setting.prepare(name, f"port-{number}", claim(name, f"port-{number}"))
            setting.kubelet.add_claim(ref(name), pods=(PodUID(f"pod-of-{name}"),))
        await setting.prepare("a", "port-9", claim("a", "port-9"))
        await checked_twice(setting, "a")
        assert set(setting.api.reads) == {ref("a").uid}


async def test_a_claim_that_the_kubelet_names_while_it_is_asked_for_stays_prepared(
    opened: Open,
) -> None:
    """Its pod has just been admitted: the kubelet had read the claim before it was deleted."""
    async with opened() as setting:
        await setting.prepare("a", "port-1", gone("a"))
        setting.api.answering.clear()
        async with background_tasks.running(cleanup=setting.cleanup.run_periodically):
            await setting.api.wait_read("a", 1)
            setting.kubelet.add_claim(ref("a"), pods=(POD,))
            setting.api.answering.set()
            await asyncio.sleep(0.2)
        assert setting.unprepared == []


async def test_each_claim_is_checked_whatever_happened_to_the_others(opened: Open) -> None:
    async with opened() as setting:
        await setting.prepare("used", "port-1", claim("used", "port-1"))
        await setting.prepare("unknown", "port-2", RetryableError(Reason.API_UNAVAILABLE, "no"))
        await setting.prepare("gone", "port-3", gone("gone"))
        async with background_tasks.running(cleanup=setting.cleanup.run_periodically):
            await setting.prepared.wait_removed(ref("gone").uid)
        assert set(setting.prepared) == {ref("used").uid, ref("unknown").uid}


async def test_an_unreadable_record_is_removed_with_its_claim(opened: Open) -> None:
    async with opened() as setting:
        for name, answer in (("gone", gone("gone")), ("there", claim("there", "port-1"))):
            setting.prepared.unreadable[ref(name).uid] = ref(name)
            setting.api.answers[ref(name).uid] = answer
        async with background_tasks.running(cleanup=setting.cleanup.run_periodically):
            await setting.prepared.wait_removed(ref("gone").uid)
            await setting.api.wait_read("there", 2)
        assert setting.prepared.unreadable == {ref("there").uid: ref("there")}


async def test_a_claim_that_cannot_be_unprepared_is_tried_again(opened: Open) -> None:
    async with opened() as setting:
        await setting.prepare("a", "port-1", gone("a"))
        setting.failure = RetryableError(Reason.STATE_UNAVAILABLE, "the disk is full")
        await checked_twice(setting, "a")
        assert ref("a") in setting.unprepared
        assert set(setting.prepared) == {ref("a").uid}
        setting.failure = None
        async with background_tasks.running(cleanup=setting.cleanup.run_periodically):
            await setting.prepared.wait_removed(ref("a").uid)


async def test_a_claim_that_blocks_another_is_checked_at_once(opened: Open) -> None:
    async with opened() as setting:
        await setting.prepare("a", "port-1", gone("a"))
        await setting.prepare("b", "port-2", gone("b"))
        async with background_tasks.running(cleanup=setting.cleanup.check_blocking_claims):
            setting.wait_queue.blocking_claims.put_nowait(ref("not prepared").uid)
            setting.wait_queue.blocking_claims.put_nowait(ref("a").uid)
            await setting.prepared.wait_removed(ref("a").uid)
        assert setting.api.reads == {ref("a").uid: 1}
        assert set(setting.prepared) == {ref("b").uid}


async def test_blocking_claims_are_checked_at_the_same_time_and_each_once(opened: Open) -> None:
    async with opened() as setting:
        setting.api.answering.clear()
        await setting.prepare("a", "port-1", gone("a"))
        await setting.prepare("b", "port-2", gone("b"))
        async with background_tasks.running(cleanup=setting.cleanup.check_blocking_claims):
            for name in ("a", "a", "b", "a"):
                setting.wait_queue.blocking_claims.put_nowait(ref(name).uid)
                await setting.api.wait_read(name, 1)
            setting.api.answering.set()
            await setting.prepared.wait_removed(ref("a").uid)
            await setting.prepared.wait_removed(ref("b").uid)
        assert setting.api.reads == {ref("a").uid: 1, ref("b").uid: 1}
        assert sorted(setting.unprepared) == [ref("a"), ref("b")]


async def test_a_claim_is_not_checked_twice_at_the_same_time(opened: Open) -> None:
    async with opened() as setting:
        setting.api.answering.clear()
        await setting.prepare("a", "port-1", gone("a"))
        setting.wait_queue.blocking_claims.put_nowait(ref("a").uid)
        async with background_tasks.running(blocking=setting.cleanup.check_blocking_claims):
            await setting.api.wait_read("a", 1)
            async with background_tasks.running(cleanup=setting.cleanup.run_periodically):
                await asyncio.sleep(0.2)  # the cleanup comes to the claim again and again
            setting.api.answering.set()
            await setting.prepared.wait_removed(ref("a").uid)
        assert setting.api.reads == {ref("a").uid: 1}
