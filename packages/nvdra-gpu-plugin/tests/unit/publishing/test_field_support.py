# SPDX-License-Identifier: Apache-2.0
"""Whether the API server keeps counters: when it is asked, and what follows from its answers."""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from nvdra_api.ids import NodeName
from nvdra_gpu_plugin.publishing import field_support
from nvdra_gpu_plugin.publishing.field_support import FieldSupport
from nvdra_runtime.kube.event_recorder import EventRecorder
from nvdra_runtime.process import background_tasks
from nvdra_runtime.resourceslices.arrangement import COMBINED, SPLIT, SliceLimits
from nvdra_testing import virtual_time
from nvdra_testing.faults import recorded_api
from nvdra_testing.faults.recorded_api import Answer, RecordedApi, Request

NODE = NodeName("node-a")
DRY_RUN = "POST /apis/resource.k8s.io/v1/resourceslices?dryRun=All"
GATE = "DRAPartitionableDevices"


@dataclass
class Cluster:
    """An API server that keeps counters or drops them.

    Attributes:
        refusal: What it answers to a dry run instead; 0 for nothing.
        is_down: Whether it refuses everything.
        events: Messages of the Events that were written.
    """

    version: str = "v1.36.3"
    is_kept: bool = True
    refusal: int = 0
    is_down: bool = False
    events: list[str] = field(default_factory=list)

    def answer(self, request: Request) -> Answer:
        if self.is_down:
            return recorded_api.status(500, "InternalError")
        if request.line == "GET /version":
            return 200, {"gitVersion": self.version}
        if request.line == DRY_RUN:
            if self.refusal:
                return recorded_api.status(self.refusal, "Invalid")
            dropped = () if self.is_kept else ("sharedCounters",)
            spec = {key: each for key, each in request.body["spec"].items() if key not in dropped}
            return 200, {**request.body, "spec": spec}
        self.events.append(request.body["message"])
        return 200, request.body


Main = Callable[[Cluster, FieldSupport, RecordedApi, list[SliceLimits | None]], Awaitable[Any]]


def asked(cluster: Cluster, main: Main) -> None:
    """Run `main` after the API server has answered; its list has every change of the limits."""

    async def started() -> None:
        api = RecordedApi(cluster.answer)
        events = EventRecorder(api, "gpu.nvidia.com", NODE, lambda: datetime.now(UTC))
        support, changes = (
            FieldSupport(field_support.COUNTERS, NODE, events),
            list[SliceLimits | None](),
        )
        support.on_change(lambda: changes.append(support.limits))
        async with events.running(), background_tasks.running(support=partial(support.run, api)):
            await asyncio.sleep(60)
            assert api.requests == [], "nobody needs to know"
            await support.wait_known()
            await main(cluster, support, api, changes)

    virtual_time.run_with_virtual_time(started)


async def watched_again(support: FieldSupport) -> None:
    support.note_restart()
    await asyncio.sleep(1)


@pytest.mark.parametrize(
    ("version", "limits"),
    [
        ("v1.34.4", COMBINED),
        ("v1.34.4-gke.1000", COMBINED),
        ("v1.35.0-alpha.1", SPLIT),
        ("v1.35.0-gke.1234", SPLIT),
        ("v1.35.2-eks-abc", SPLIT),
        ("v1.36.3", SPLIT),
    ],
)
def test_counters_are_kept_in_the_form_of_the_release(version: str, limits: SliceLimits) -> None:
    async def main(
        _: Cluster, support: FieldSupport, api: RecordedApi, changes: list[SliceLimits | None]
    ) -> None:
        assert changes == [support.limits] == [limits]
        assert support.remark is None
        assert api.lines() == ["GET /version", DRY_RUN]
        spec = api.sent(DRY_RUN).body["spec"]
        assert "devices" not in spec, "a slice with both is rejected since 1.35"
        assert spec["nodeName"] == NODE

    asked(Cluster(version), main)


def test_what_is_kept_is_asked_again_only_after_an_upgrade() -> None:
    async def main(
        cluster: Cluster,
        support: FieldSupport,
        api: RecordedApi,
        changes: list[SliceLimits | None],
    ) -> None:
        await asyncio.sleep(86400)
        assert api.lines() == ["GET /version", DRY_RUN]
        await watched_again(support)
        assert api.lines("POST") == [DRY_RUN]
        cluster.version = "v1.35.1"
        await watched_again(support)
        assert api.lines("POST") == [DRY_RUN, DRY_RUN]
        assert changes == [COMBINED, SPLIT]

    asked(Cluster("v1.34.4"), main)


def test_dropped_counters_are_told_once_and_asked_for_until_they_are_kept() -> None:
    async def main(
        cluster: Cluster,
        support: FieldSupport,
        _: RecordedApi,
        changes: list[SliceLimits | None],
    ) -> None:
        assert GATE in (support.remark or "")
        await watched_again(support)
        await watched_again(support)
        (message,) = cluster.events
        assert GATE in message
        assert "kube-scheduler" in message
        assert changes == [None]
        cluster.is_kept = True
        await watched_again(support)
        assert changes == [None, SPLIT]
        assert not support.remark

    asked(Cluster(is_kept=False), main)


def test_counters_that_a_slice_has_lost_count_as_dropped_until_an_upgrade() -> None:
    """Several API servers with different gates: a dry run would say now this and now that."""

    async def main(
        cluster: Cluster,
        support: FieldSupport,
        api: RecordedApi,
        changes: list[SliceLimits | None],
    ) -> None:
        support.note_dropped(("DRADeviceTaints",))
        support.note_dropped((GATE,))
        await watched_again(support)
        assert api.lines("POST").count(DRY_RUN) == 1
        assert changes == [SPLIT, None]
        cluster.version = "v1.36.4"
        await watched_again(support)
        assert changes == [SPLIT, None, SPLIT]

    asked(Cluster(), main)


@pytest.mark.parametrize("status", [400, 403, 422])
def test_a_dry_run_that_is_refused_leaves_the_answer_to_the_first_slice(status: int) -> None:
    """A webhook's denial is 403 or what the webhook says; one without dry runs makes it 400."""

    async def main(
        _: Cluster, support: FieldSupport, __: RecordedApi, ___: list[SliceLimits | None]
    ) -> None:
        assert support.limits is SPLIT

    asked(Cluster(refusal=status), main)


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("served", ["v1", "v1beta1"])
def test_whether_devices_can_be_shared_is_asked_in_the_version_that_is_served(
    is_kept: bool, served: str
) -> None:
    """In v1beta1, what a device has is below `basic`."""

    def answer(request: Request) -> Answer:
        if request.line == "GET /version":
            return 200, {"gitVersion": "v1.36.3"}
        if "dryRun" not in request.line:
            return 200, request.body
        stored = copy.deepcopy(request.body)
        (device,) = stored["spec"]["devices"]
        place = device["basic"] if served == "v1beta1" else device
        assert place["allowMultipleAllocations"]
        if not is_kept:
            del place["allowMultipleAllocations"]
        return 200, stored

    async def started() -> None:
        api = RecordedApi(answer, version=served)
        events = EventRecorder(api, "gpu.nvidia.com", NODE, lambda: datetime.now(UTC))
        support = FieldSupport(field_support.SHARES, NODE, events)
        async with background_tasks.running(support=partial(support.run, api)):
            await support.wait_known()
        assert support.is_kept == is_kept
        assert ("DRAConsumableCapacity" in (support.remark or "")) == (not is_kept)
        support.note_dropped(("DRAPartitionableDevices",))
        assert support.is_kept == is_kept
        support.note_dropped(("DRAConsumableCapacity",))
        assert not support.is_kept

    virtual_time.run_with_virtual_time(started)


def test_nothing_is_known_before_the_api_server_answers() -> None:
    cluster = Cluster(is_down=True)

    async def started() -> None:
        api = RecordedApi(cluster.answer)
        events = EventRecorder(api, "gpu.nvidia.com", NODE, lambda: datetime.now(UTC))
        support = FieldSupport(field_support.COUNTERS, NODE, events)
        async with background_tasks.running(support=partial(support.run, api)):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(300):
                    await support.wait_known()
            assert len(api.requests) == 30, "every 10 s"
            cluster.is_down = False
            await support.wait_known()
            assert support.limits is SPLIT

    virtual_time.run_with_virtual_time(started)
