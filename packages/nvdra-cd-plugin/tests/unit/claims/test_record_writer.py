# SPDX-License-Identifier: Apache-2.0
"""A device is given to one claim, and what was given goes before the record of it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from nvdra_api.errors import PermanentError, Reason, RetryableError
from nvdra_api.ids import ClaimUID, DeviceName, DomainUID, NodeName, PoolName
from nvdra_api.resource.claims import ClaimRef
from nvdra_cd_plugin.cdi import edits
from nvdra_cd_plugin.cdi.edits import DevRoot
from nvdra_cd_plugin.cdi.spec_files import SpecFiles
from nvdra_cd_plugin.claims.record_writer import RecordWriter
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord, DomainDeviceRecord
from nvdra_cd_plugin.node import device_numbers
from nvdra_cd_plugin.node.file_worker import FileWorker
from nvdra_cdi.nvidia.options import Options
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.records import DeviceInUseError
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder

NODE = NodeName("node-1")
DOMAIN = DomainUID("11111111-2222-3333-4444-555555555555")
CHANNEL = DeviceName("channel-0")
EDITS = edits.channels(DevRoot("/"), [device_numbers.channel(0, 235)])


class Clock:
    def __init__(self) -> None:
        self.time = datetime(2026, 8, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()


def record(number: int, device: str = CHANNEL, **more: object) -> DomainClaimRecord:
    held = DomainDeviceRecord(
        request="r",
        pool=PoolName(NODE),
        device=DeviceName(device),
        kind=device.partition("-")[0],
        **more,
    )
    return DomainClaimRecord(
        namespace="team-a",
        name=f"claim-{number}",
        uid=ClaimUID(f"0000000{number}-bbbb-cccc-dddd-eeeeeeeeeeee"),
        domain=DOMAIN,
        devices=(held,),
    )


class Node:
    def __init__(self, root: Path, store: RecordStore, worker: Worker, clock: Clock) -> None:
        self.cdi = root / "cdi"
        self.clock = clock
        self.specs = SpecFiles(self.cdi, Options)
        self.prepared = PreparedClaims(store, DomainClaimRecord, lambda *_: None)
        telemetry = Telemetry(clock, PluginMetrics(driver="d", node=NODE), TraceRecorder())
        self.writer = RecordWriter(NODE, self.prepared, self.specs, FileWorker(worker), telemetry)

    def spec(self, claim: DomainClaimRecord) -> Path:
        return self.cdi / f"k8s.compute-domain.nvidia.com-claim_{claim.uid}.yaml"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    clock = Clock()
    async with (
        RecordStore.open(tmp_path / "state.sqlite", "boot", clock) as store,
        Worker("files") as worker,
    ):
        yield Node(tmp_path, store, worker, clock)


def soon() -> float:
    return asyncio.get_running_loop().time() + 5


async def test_a_record_goes_after_the_spec_that_it_is_for(node: Node) -> None:
    mine = record(1)
    node.specs.write(mine.uid, CHANNEL, EDITS)
    await node.writer.add(mine)
    await node.writer.remove(mine, soon())
    assert not node.spec(mine).exists()
    assert not node.writer.is_recorded(mine)


async def test_a_spec_that_cannot_be_removed_keeps_the_record(node: Node) -> None:
    """Without the record nobody would remove the spec, until the plugin starts again."""
    mine = record(1)
    await node.writer.add(mine)
    node.spec(mine).mkdir(parents=True)  # a directory where the file was
    with pytest.raises(RetryableError) as caught:
        await node.writer.remove(mine, soon())
    assert caught.value.reason is Reason.STATE_UNAVAILABLE
    assert node.writer.is_recorded(mine)
    node.spec(mine).rmdir()
    await node.writer.remove(mine, soon())
    assert not node.writer.is_recorded(mine)


async def test_of_claims_that_want_one_device_at_once_one_gets_it(node: Node) -> None:
    claims = [record(number) for number in range(6)]
    answers = await asyncio.gather(  # noqa: TID251 - some of them fail
        *(node.writer.add_if_free(each, soon()) for each in claims), return_exceptions=True
    )
    refused = [each for each in answers if isinstance(each, DeviceInUseError)]
    assert len(refused) == 5
    (holder,) = node.prepared
    assert {each.holder.uid for each in refused} == {holder}


async def test_a_refusal_says_since_when_the_device_is_held(node: Node) -> None:
    held = record(1)
    await node.writer.add(held)
    began = node.clock.time
    node.clock.time += timedelta(hours=1)
    with pytest.raises(DeviceInUseError) as caught:
        node.writer.check_free(record(2))
    assert caught.value.since == began
    assert caught.value.holder == held
    node.writer.check_free(held)


async def test_no_device_is_given_while_it_is_unknown_who_holds_it(node: Node) -> None:
    broken = ClaimRef("team-a", "broken", ClaimUID("u"))
    node.prepared.unreadable[broken.uid] = broken
    with pytest.raises(PermanentError, match="team-a/broken") as caught:
        await node.writer.add_if_free(record(1), soon())
    assert caught.value.reason is Reason.STATE_CORRUPT
    node.prepared.unreadable.clear()
    node.prepared.incomplete_reason = "records were lost"
    with pytest.raises(PermanentError, match="records were lost"):
        await node.writer.add_if_free(record(1), soon())
    assert dict(node.prepared) == {}


async def test_the_share_of_a_device_is_answered(node: Node) -> None:
    answer = await node.writer.add(record(1, share_id="share-7"))
    assert [device.share_id for device in answer.devices] == ["share-7"]


async def test_a_node_is_a_member_since_its_first_channel_was_recorded(node: Node) -> None:
    daemon = record(1, "daemon-0")
    await node.writer.add(daemon)
    assert node.writer.joined_at(DOMAIN) is None
    began = node.clock.time = node.clock.time + timedelta(minutes=1)
    await node.writer.add(record(2))
    node.clock.time += timedelta(minutes=1)
    assert node.writer.joined_at(DOMAIN) == began
    assert node.writer.joined_at(DomainUID("another")) is None
