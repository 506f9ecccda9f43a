# SPDX-License-Identifier: Apache-2.0
"""The state of a plugin as one document: what keeps it from being ready, claims and failures."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from nvdra_api.errors import PermanentError, Reason, RetryableError
from nvdra_api.ids import ClaimUID, DeviceName, NodeName, PodUID, PoolName
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.claims.failures import FailureRecorder
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.records import DeviceRecord, PreparedClaimRecord
from nvdra_runtime.http.probes import Check, PassingRemark
from nvdra_runtime.kube.client import Client, KubeSettings
from nvdra_runtime.kube.connection import Connection
from nvdra_runtime.kube.event_recorder import EventRecorder
from nvdra_runtime.kube.rate_limiter import RateLimiter
from nvdra_runtime.kube.request_observer import ignore_request
from nvdra_runtime.kubeletplugin import status_report
from nvdra_runtime.kubeletplugin.status_report import Document, StatusReport
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder

NODE = NodeName("node-a")
BEGIN = datetime(2026, 11, 5, 12, 0, tzinfo=UTC)
UID = ClaimUID("3f0c1a52-7c1b-4d0e-8a55-0123456789ab")
REF = ClaimRef("ml", "train", UID)


class Clock:
    """Time that moves when a test says so."""

    def __init__(self) -> None:
        self.wall = BEGIN

    def now(self) -> datetime:
        return self.wall

    def monotonic(self) -> float:
        return (self.wall - BEGIN).total_seconds()


class PortRecord(DeviceRecord):
    """A device of another driver."""

    kind: str = "port"

    @property
    def display_name(self) -> str:
        return f"{self.device} (left)"

    @property
    def cdi_ids(self) -> tuple[str, ...]:
        return (f"example.com/port={self.device}",)


class PortClaimRecord(PreparedClaimRecord):
    devices: tuple[PortRecord, ...]


class Plugin:
    """The parts of a plugin that the report reads."""

    def __init__(
        self, clock: Clock, prepared: PreparedClaims[PortClaimRecord], failures: FailureRecorder
    ) -> None:
        self.clock = clock
        self.prepared = prepared
        self.failures = failures
        self.devices: list[Document] = []

    def report(self, **checks: Check) -> StatusReport[PortClaimRecord]:
        return StatusReport(
            "port.example.com",
            "1.2.3",
            NODE,
            lambda: self.devices,
            self.prepared,
            self.failures,
            checks,
            self.clock,
        )


def ignore_counts(claims: Mapping[str, int], devices: Mapping[str, int]) -> None:
    """Count nothing."""


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[Plugin]:
    clock = Clock()
    metrics = PluginMetrics(driver="port.example.com", node=NODE)
    telemetry = Telemetry(clock, metrics, TraceRecorder())
    api = Client(Connection(KubeSettings()), RateLimiter(1, 1), ignore_request)
    failures = FailureRecorder(NODE, EventRecorder(api, "port", NODE, clock.now), telemetry, clock)
    async with RecordStore.open(path / "state.sqlite", "boot", clock) as store:
        yield Plugin(clock, PreparedClaims(store, PortClaimRecord, ignore_counts), failures)


@pytest.fixture
async def plugin(tmp_path: Path) -> AsyncIterator[Plugin]:
    async with running(tmp_path) as made:
        yield made


def record(*devices: str, pod_names: tuple[str, ...] = ("train-0",)) -> PortClaimRecord:
    return PortClaimRecord(
        namespace=REF.namespace,
        name=REF.name,
        uid=UID,
        pods=(PodUID("pod-uid"),),
        pod_names=pod_names,
        devices=tuple(
            PortRecord(request="r", pool=PoolName(NODE), device=DeviceName(each))
            for each in devices
        ),
    )


async def test_a_plugin_on_which_nothing_happened_says_who_and_since_when(plugin: Plugin) -> None:
    report = plugin.report(kubelet=lambda: None)
    plugin.clock.wall += timedelta(hours=3, milliseconds=750)
    assert report.document() == {
        "driver": "port.example.com",
        "node": "node-a",
        "version": "1.2.3",
        "now": "2026-11-05T15:00:00Z",
        "started": "2026-11-05T12:00:00Z",
        "problems": {},
        "remarks": {},
        "devices": [],
        "claims": [],
        "failures": [],
    }


async def test_problems_are_told_apart_from_remarks_and_what_is_well_is_left_out(
    plugin: Plugin,
) -> None:
    document = plugin.report(
        kubelet=lambda: "not registered",
        fabric=lambda: PassingRemark("clique 6f1c.2"),
        state=lambda: None,
        slices=lambda: "",
    ).document()
    assert document["problems"] == {"kubelet": "not registered"}
    assert document["remarks"] == {"fabric": "clique 6f1c.2"}


async def test_each_document_is_asked_for_anew(plugin: Plugin) -> None:
    numbers = iter(("1", "2", "3"))
    report = plugin.report(count=lambda: next(numbers))
    assert [report.document()["problems"]["count"] for _ in range(2)] == ["1", "2"]
    plugin.devices = [{"name": "port-1", "state": "free", "claims": []}]
    assert report.document()["devices"] == plugin.devices


async def test_a_prepared_claim_has_its_devices_its_pods_and_its_time(plugin: Plugin) -> None:
    plugin.clock.wall += timedelta(minutes=1)
    await plugin.prepared.add(REF, record("port-3", "port-1"))
    plugin.clock.wall += timedelta(minutes=1)
    assert plugin.report().document()["claims"] == [
        {
            "namespace": "ml",
            "name": "train",
            "uid": UID,
            "state": "prepared",
            "since": "2026-11-05T12:01:00Z",
            "devices": ["port-3 (left)", "port-1 (left)"],
            "pods": ["train-0"],
        }
    ]


async def test_the_pods_of_a_recovered_claim_are_told_by_uid(plugin: Plugin) -> None:
    await plugin.prepared.add(REF, record("port-1", pod_names=()))
    (claim,) = plugin.report().document()["claims"]
    assert claim["pods"] == ["pod-uid"]


async def test_a_claim_whose_record_cannot_be_read_is_listed_without_devices(
    tmp_path: Path,
) -> None:
    async with RecordStore.open(tmp_path / "state.sqlite", "boot", Clock()) as store:
        await store.put(REF, "prepared", "{}")
    async with running(tmp_path) as plugin:
        assert plugin.report().document()["claims"] == [
            {
                "namespace": "ml",
                "name": "train",
                "uid": UID,
                "state": "unreadable record",
                "since": "2026-11-05T12:00:00Z",
                "devices": [],
                "pods": [],
            }
        ]


async def test_a_failure_has_its_reason_its_times_and_the_trace_of_its_claim(
    plugin: Plugin,
) -> None:
    report = plugin.report()
    for _ in range(2):
        plugin.clock.wall += timedelta(seconds=10)
        plugin.failures.record(
            REF, keys.PREPARE, RetryableError(Reason.DEVICE_IN_USE, "port-1 is held")
        )
    told: dict[str, Any] = {
        "namespace": "ml",
        "name": "train",
        "uid": UID,
        "operation": "prepare",
        "reason": "DeviceInUse",
        "message": "port-1 is held, since 2026-11-05T12:00:10Z",
        "since": "2026-11-05T12:00:10Z",
        "latest": "2026-11-05T12:00:20Z",
        "count": 2,
        "ended": None,
        "trace_id": "3f0c1a527c1b4d0e8a550123456789ab",
    }
    assert report.document()["failures"] == [told]

    plugin.clock.wall += timedelta(seconds=10)
    plugin.failures.record_success(REF, keys.PREPARE, None, ["prepared"])
    assert report.document()["failures"] == [{**told, "ended": "2026-11-05T12:00:30Z"}]


async def test_the_newest_failures_come_first_and_there_are_twenty_at_most(plugin: Plugin) -> None:
    for number in range(status_report.MAX_FAILURES + 5):
        ref = ClaimRef("ml", f"claim-{number}", ClaimUID(f"uid-{number}"))
        plugin.failures.record(ref, keys.PREPARE, PermanentError(Reason.UNKNOWN_DEVICE, "gone"))
    names = [each["name"] for each in plugin.report().document()["failures"]]
    assert names == [f"claim-{number}" for number in range(24, 4, -1)]


async def test_the_document_is_json(plugin: Plugin) -> None:
    await plugin.prepared.add(REF, record("port-1"))
    plugin.failures.record(REF, keys.UNPREPARE, RetryableError(Reason.LOCK_TIMEOUT, "later"))
    document = plugin.report(
        fabric=lambda: PassingRemark("whole"), kubelet=lambda: "not registered"
    ).document()
    assert json.loads(json.dumps(document)) == document
