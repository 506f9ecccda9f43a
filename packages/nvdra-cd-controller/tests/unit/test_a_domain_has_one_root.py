"""When the root of a domain's trace is written, what it says, and that it is written once."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import cd_objects
import pytest
from cd_objects import UID
from nvdra_api.protocol import identity
from nvdra_api.runtime.telemetry.recorder import Recorder
from nvdra_api.runtime.telemetry.spans import Span
from nvdra_api.runtime.telemetry.traces import Telemetry
from nvdra_api.types import keys
from nvdra_api.types.domains import ComputeDomain, ComputeDomainStatus
from nvdra_api.types.ids import NodeName
from nvdra_cd_controller import status
from nvdra_cd_controller.members import Member
from nvdra_cd_controller.metrics import DomainMetrics
from nvdra_cd_controller.roots import ANNOTATION, Roots
from nvdra_cd_controller.status import Facts
from nvdra_cd_controller.view import Child, View

CREATED = datetime(2026, 1, 1, tzinfo=UTC)


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
        self.telemetry = Telemetry(self.clock, self.metrics, Recorder())
        self.roots = Roots(self.telemetry, self.clock)

    def written(self) -> list[Span]:
        return [span for trace in self.telemetry.recorder.traces() for span in trace.spans]


def view(**metadata: Any) -> View:
    stored = cd_objects.document()
    stored["metadata"] |= metadata
    return View(UID, ComputeDomain.model_validate(stored), stored)


def told(members: int = 0, num_nodes: int = 0) -> ComputeDomainStatus:
    ready = tuple(
        Member(NodeName(f"n{i}"), "10.0.0.1", cd_objects.CLIQUE, i, is_ready=True)
        for i in range(members)
    )
    wanted = status.wanted(cd_objects.domain(num_nodes), Facts(members=ready), CREATED)
    return ComputeDomainStatus.model_validate(wanted)


def test_it_is_due_when_the_domain_has_formed_and_not_while_it_is_empty() -> None:
    setting = Setting()

    assert not setting.roots.due(view(), told())
    assert setting.roots.due(view(), told(members=1))
    assert setting.roots.due_in_s(view()) == 60


def test_the_root_reaches_from_the_creation_to_now() -> None:
    setting = Setting()
    setting.clock.seconds = 12.5
    setting.roots.write(view(), told(members=2))

    (root,) = setting.written()
    assert root.name == "compute domain"
    assert (root.trace, root.id, root.parent) == (
        identity.trace_id(UID),
        identity.domain_root(UID),
        None,
    )
    assert root.seconds == 12.5
    assert root.failure is None
    assert root.attributes[keys.MEMBERS] == 2
    sample = setting.metrics.registry.get_sample_value
    assert sample("nvdra_compute_domain_formation_seconds_sum") == 12.5


def test_a_domain_that_never_forms_has_its_root_after_a_minute_with_the_reason() -> None:
    setting = Setting()
    waiting = told(num_nodes=2)
    setting.clock.seconds = 59.9
    assert not setting.roots.due(view(), waiting)
    setting.clock.seconds = 60
    assert setting.roots.due(view(), waiting)

    setting.roots.write(view(), waiting)
    (root,) = setting.written()
    assert root.failure is not None
    assert root.failure.reason == "NodesMissing"
    assert root.attributes[keys.OUTCOME] == "retryable"
    sample = setting.metrics.registry.get_sample_value
    assert sample("nvdra_compute_domain_formation_seconds_count") == 0


def test_a_domain_that_goes_before_it_has_formed_has_its_root_then() -> None:
    setting = Setting()
    going = view(deletionTimestamp="2026-01-01T00:00:05Z")

    assert setting.roots.due(going, told())
    setting.roots.write(going, told())
    (root,) = setting.written()
    assert root.attributes[keys.OUTCOME] == "cancelled"


def test_it_is_written_once_also_by_the_controller_after_this_one() -> None:
    setting, after = Setting(), told(members=1)
    value = setting.roots.write(view(), after)
    assert not setting.roots.due(view(), after)
    assert setting.roots.due_in_s(view()) is None

    daemonset = Child("DaemonSet", {"metadata": {"annotations": {ANNOTATION: value}}})
    another = Setting()
    assert another.roots.due(view(), after)
    assert not another.roots.due(replace(view(), daemonsets=(daemonset,)), after)


def going(facts: Facts) -> View:
    stored = cd_objects.document(status=status.wanted(cd_objects.domain(), facts, CREATED))
    stored["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:05Z"}
    return View(UID, ComputeDomain.model_validate(stored), stored)


@pytest.mark.parametrize("waits_for", ["", "DaemonSet nvdra/a to go"])
def test_a_controller_that_finds_a_teardown_without_the_daemonset_writes_no_second_root(
    waits_for: str,
) -> None:
    """Killed between the DaemonSet's end and the domain's, the mark is gone with the DaemonSet."""
    torn_down = going(Facts(waits_for=waits_for))
    setting = Setting()
    assert setting.roots.is_written(torn_down)

    begun = replace(torn_down, daemonsets=(Child("DaemonSet", {"metadata": {}}),))
    assert not setting.roots.is_written(begun)


def template(**annotations: str) -> Child:
    return Child("ResourceClaimTemplate", {"metadata": {"annotations": annotations}})


def test_where_there_is_no_daemonset_the_workloads_template_keeps_the_mark() -> None:
    roots, daemonset = Setting().roots, Child("DaemonSet", {"metadata": {}})
    assert roots.keeper(view()) is None
    bare = replace(view(), workload_templates=(template(),))
    assert roots.keeper(bare) == template()
    assert roots.keeper(replace(bare, daemonsets=(daemonset,))) == daemonset

    after = told(members=1)
    marked = replace(view(), workload_templates=(template(**{ANNOTATION: "then"}),))
    assert roots.due(bare, after)
    assert not roots.due(marked, after)
    assert roots.due_in_s(marked) is None


def test_a_domain_that_never_had_a_child_has_its_root_when_it_goes() -> None:
    assert not Setting().roots.is_written(going(Facts(are_children_there=False)))


def test_where_the_hosts_run_imex_the_template_is_what_goes_with_the_mark() -> None:
    roots, host_managed = Setting().roots, going(Facts(is_host_managed=True))
    assert roots.is_written(host_managed)
    assert not roots.is_written(replace(host_managed, workload_templates=(template(),)))


def test_context_that_the_user_put_on_the_domain_is_linked_and_not_inherited() -> None:
    setting = Setting()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    annotated = view(annotations={"tracing.k8s.io/traceparent": parent})
    setting.roots.write(annotated, told(members=1))

    (root,) = setting.written()
    assert [(link.trace, link.why) for link in root.links] == [
        ("0af7651916cd43dd8448eb211c80319c", "inbound")
    ]
    assert root.trace == identity.trace_id(UID)
