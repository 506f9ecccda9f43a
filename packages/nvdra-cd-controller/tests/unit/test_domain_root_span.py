# SPDX-License-Identifier: Apache-2.0
"""When the root span of a domain is written and what it says."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nvdra_api.ids import NodeName
from nvdra_api.v1beta1 import ComputeDomain
from nvdra_api.v1beta1.compute_domain import ComputeDomainStatus
from nvdra_cd_controller import status
from nvdra_cd_controller.domain_root_span import ANNOTATION, DomainRootSpan
from nvdra_cd_controller.domain_snapshot import Child, DomainSnapshot
from nvdra_cd_controller.informers import DomainInformers
from nvdra_cd_controller.members import Member
from nvdra_cd_controller.metrics import DomainMetrics
from nvdra_cd_controller.object_writer import ObjectWriter
from nvdra_cd_controller.status import StatusInputs
from nvdra_runtime.telemetry import keys, trace_ids
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder
from nvdra_runtime.telemetry.spans import Span
from nvdra_testing import virtual_time
from nvdra_testing.control_plane import domain_values
from nvdra_testing.control_plane.domain_values import UID
from nvdra_testing.faults.recorded_api import RecordedApi

CREATED = datetime(2026, 1, 1, tzinfo=UTC)
DAEMONSET = {
    "kind": "DaemonSet",
    "metadata": {"name": "d", "namespace": "nvdra", "uid": "u", "resourceVersion": "5"},
}


@dataclass
class Clock:
    seconds: float = 0.0

    def now(self) -> datetime:
        return CREATED + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds


class Setting:
    def __init__(self) -> None:
        self.clock = Clock()
        self.metrics = DomainMetrics()
        self.telemetry = Telemetry(self.clock, self.metrics.process, TraceRecorder())
        self.api = RecordedApi(lambda asked: (200, {**DAEMONSET, "spec": asked.body}))
        informers = DomainInformers(
            self.api, ["nvdra"], lambda _: None, lambda _: None, is_host_managed=False
        )
        writer = ObjectWriter(self.api, informers)
        self.root_span = DomainRootSpan(writer, self.telemetry, self.metrics, self.clock)

    def written(self) -> list[Span]:
        return [span for trace in self.telemetry.recorder.traces() for span in trace.spans]


def view(**metadata: Any) -> DomainSnapshot:
    stored = domain_values.domain_json()
    stored["metadata"] |= metadata
    return DomainSnapshot(UID, ComputeDomain.model_validate(stored), stored)


def status_of(members: int = 0, num_nodes: int = 0) -> ComputeDomainStatus:
    ready = tuple(
        Member(NodeName(f"n{i}"), "10.0.0.1", domain_values.CLIQUE, i, is_ready=True)
        for i in range(members)
    )
    wanted = status.desired(domain_values.domain(num_nodes), StatusInputs(members=ready), CREATED)
    return ComputeDomainStatus.model_validate(wanted)


def test_it_is_due_once_the_domain_is_formed() -> None:
    setting = Setting()

    assert setting.root_span.due_in_s(view(), status_of()) == 60
    assert setting.root_span.due_in_s(view(), status_of(members=1)) == 0


def test_the_root_span_begins_with_the_domains_creation() -> None:
    setting = Setting()
    setting.clock.seconds = 12.5
    setting.root_span.write(view(), status_of(members=2))

    (root,) = setting.written()
    assert root.name == "compute domain"
    assert (root.trace, root.id, root.parent) == (
        trace_ids.trace_id(UID),
        trace_ids.domain_root_span_id(UID),
        None,
    )
    assert root.seconds == 12.5
    assert root.failure is None
    assert root.attributes[keys.MEMBERS] == 2
    sample = setting.metrics.registry.get_sample_value
    assert sample("nvdra_compute_domain_formation_seconds_sum") == 12.5


def test_a_domain_that_does_not_form_gets_its_root_span_after_a_minute() -> None:
    setting = Setting()
    waiting = status_of(num_nodes=2)
    setting.clock.seconds = 59.9
    assert setting.root_span.due_in_s(view(), waiting) == pytest.approx(0.1)
    setting.clock.seconds = 60
    assert setting.root_span.due_in_s(view(), waiting) == 0

    setting.root_span.write(view(), waiting)
    (root,) = setting.written()
    assert root.failure is not None
    assert root.failure.reason == "NodesMissing"
    assert root.attributes[keys.OUTCOME] == "retryable"
    sample = setting.metrics.registry.get_sample_value
    assert sample("nvdra_compute_domain_formation_seconds_count") == 0


def test_a_domain_that_is_deleted_before_it_is_formed_gets_its_root_span() -> None:
    setting = Setting()
    going = view(deletionTimestamp="2026-01-01T00:00:05Z")

    assert setting.root_span.due_in_s(going, status_of()) == 0
    setting.root_span.write(going, status_of())
    (root,) = setting.written()
    assert root.attributes[keys.OUTCOME] == "cancelled"


def test_it_is_written_only_once_also_by_another_controller() -> None:
    setting, after = Setting(), status_of(members=1)
    value = setting.root_span.write(view(), after)
    assert setting.root_span.due_in_s(view(), after) is None

    daemonset = Child("DaemonSet", {"metadata": {"annotations": {ANNOTATION: value}}})
    another = Setting()
    assert another.root_span.due_in_s(view(), after) == 0
    assert another.root_span.due_in_s(replace(view(), daemonsets=(daemonset,)), after) is None


def test_the_child_by_which_the_next_controller_knows_it_is_annotated_once() -> None:
    setting, after = Setting(), status_of(members=1)
    formed = replace(view(), daemonsets=(Child("DaemonSet", DAEMONSET),))

    async def main() -> None:
        for _ in range(2):
            await setting.root_span.write_if_due(formed, status_of())
            await setting.root_span.write_if_due(formed, after)

    virtual_time.run_with_virtual_time(main)
    (annotated,) = setting.api.requests
    assert annotated.body == {"metadata": {"annotations": {ANNOTATION: "2026-01-01T00:00:00Z"}}}
    assert len(setting.written()) == 1


def going(facts: StatusInputs) -> DomainSnapshot:
    stored = domain_values.domain_json(
        status=status.desired(domain_values.domain(), facts, CREATED)
    )
    stored["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:05Z"}
    return DomainSnapshot(UID, ComputeDomain.model_validate(stored), stored)


@pytest.mark.parametrize("waits_for", ["", "deletion of DaemonSet nvdra/a"])
def test_no_second_root_span_is_written_after_the_daemonset_is_deleted(
    waits_for: str,
) -> None:
    """The controller was killed after the DaemonSet with the annotation was deleted."""
    torn_down = going(StatusInputs(waits_for=waits_for))
    setting = Setting()
    assert setting.root_span.is_written(torn_down)

    begun = replace(torn_down, daemonsets=(Child("DaemonSet", {"metadata": {}}),))
    assert not setting.root_span.is_written(begun)


def template(**annotations: str) -> Child:
    return Child("ResourceClaimTemplate", {"metadata": {"annotations": annotations}})


def test_without_a_daemonset_the_workloads_template_is_annotated() -> None:
    root_span, daemonset = Setting().root_span, Child("DaemonSet", {"metadata": {}})
    assert root_span.annotated_child(view()) is None
    bare = replace(view(), workload_templates=(template(),))
    assert root_span.annotated_child(bare) == template()
    assert root_span.annotated_child(replace(bare, daemonsets=(daemonset,))) == daemonset

    after = status_of(members=1)
    marked = replace(view(), workload_templates=(template(**{ANNOTATION: "then"}),))
    assert root_span.due_in_s(bare, after) == 0
    assert root_span.due_in_s(marked, after) is None


def test_a_domain_that_never_had_children_gets_its_root_span_when_it_is_deleted() -> None:
    assert not Setting().root_span.is_written(going(StatusInputs(all_children_exist=False)))


def test_where_the_hosts_run_imex_the_deleted_template_had_the_annotation() -> None:
    root_span, host_managed = Setting().root_span, going(StatusInputs(is_host_managed=True))
    assert root_span.is_written(host_managed)
    assert not root_span.is_written(replace(host_managed, workload_templates=(template(),)))


def test_the_users_trace_context_is_linked_and_not_inherited() -> None:
    setting = Setting()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    annotated = view(annotations={"tracing.k8s.io/traceparent": parent})
    setting.root_span.write(annotated, status_of(members=1))

    (root,) = setting.written()
    assert [(link.trace, link.kind) for link in root.links] == [
        ("0af7651916cd43dd8448eb211c80319c", "inbound")
    ]
    assert root.trace == trace_ids.trace_id(UID)
