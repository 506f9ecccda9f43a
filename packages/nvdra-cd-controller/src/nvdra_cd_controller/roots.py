"""The root of a domain's trace: written once, when the domain has formed, is late, or goes.

That it was written is kept on the domain's own DaemonSet, or on its workload's claim template where
the hosts run IMEX and there is no DaemonSet, for the controller after this one.
Source: spec/tracing.md §1.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from nvdra_api.protocol import identity
from nvdra_api.runtime.process.clock import Clock
from nvdra_api.runtime.telemetry.spans import Failure
from nvdra_api.runtime.telemetry.traces import Telemetry, domain_attributes
from nvdra_api.types import keys, names
from nvdra_api.types.domains import ComputeDomain, ComputeDomainStatus, ConditionType
from nvdra_api.types.ids import DomainUID

from nvdra_cd_controller import status
from nvdra_cd_controller.metrics import DomainMetrics
from nvdra_cd_controller.view import Child, View

ANNOTATION: Final = "nvdra.nvidia.com/trace-root"
"""On the child that keeps it: when the root was written."""

LATE: Final = timedelta(seconds=60)
"""A domain that has not formed by then has its trace all the same."""


class Roots:
    """Writes the roots of one controller's domains."""

    def __init__(self, telemetry: Telemetry[DomainMetrics], clock: Clock) -> None:
        self._telemetry = telemetry
        self._clock = clock
        self._written: set[DomainUID] = set()

    def due(self, view: View, after: ComputeDomainStatus) -> bool:
        """Is it time to write the root, now that the status is this?"""
        if self.is_written(view) or view.domain is None:
            return False
        return (
            view.is_leaving
            or status.is_formed(after)
            or self._clock.now() >= _created(view.domain) + LATE
        )

    def due_in_s(self, view: View) -> float | None:
        """In how many seconds it is late at the latest; None where it is written."""
        if self.is_written(view) or view.domain is None:
            return None
        return max(0.0, (_created(view.domain) + LATE - self._clock.now()).total_seconds())

    def is_written(self, view: View) -> bool:
        """Was it written, by us or by a controller before?"""
        return view.uid in self._written or _is_marked(view) or _is_torn_down(view)

    def keeper(self, view: View) -> Child | None:
        """The child that is to keep the mark; None where there is no child."""
        return next(iter((*view.daemonsets, *view.workload_templates)), None)

    def write(self, view: View, after: ComputeDomainStatus) -> str:
        """Write it; the annotation's value."""
        assert view.domain is not None
        domain, now = view.domain, self._clock.now()
        self._written.add(view.uid)
        metadata = domain.metadata
        failure = _failure(view, after)
        outcome = keys.Outcome.SUCCESS if failure is None else failure.outcome
        link = identity.inbound_link(metadata.annotations.get(names.TRACEPARENT_ANNOTATION))
        self._telemetry.retroactive(
            "compute domain",
            trace=identity.trace_id(view.uid),
            id=identity.domain_root(view.uid),
            parent=None,
            start=_created(domain),
            end=now,
            attributes={
                **domain_attributes(metadata.namespace, metadata.name, view.uid),
                keys.MEMBERS: after.expected_nodes,
                keys.OUTCOME: outcome.value,
            },
            links=(link,) if link else (),
            failure=failure,
        )
        if status.is_formed(after):
            self._telemetry.metrics.formed((now - _created(domain)).total_seconds())
        return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def forget(self, uid: DomainUID) -> None:
        """The domain is gone."""
        self._written.discard(uid)


def _is_marked(view: View) -> bool:
    return any(
        ANNOTATION in (child.object["metadata"].get("annotations") or {})
        for child in (*view.daemonsets, *view.workload_templates)
    )


def _is_torn_down(view: View) -> bool:
    """Is the child gone already that kept the mark?

    A teardown begins with the root if nobody has written it, so whoever took the child away knew
    that it was. That there was one is what the status says.
    """
    if view.domain is None or not view.is_leaving or view.daemonsets:
        return False
    told = view.domain.status
    ready, made = told.condition(ConditionType.READY), told.condition(ConditionType.CHILDREN_READY)
    if made is None:
        return False
    is_host_managed = ready is not None and ready.reason == status.Because.HOST_MANAGED
    if is_host_managed and view.workload_templates:
        return False  # it never had a DaemonSet; its template would tell
    return made.status == "True" or made.reason == status.Because.DELETING


def _created(domain: ComputeDomain) -> datetime:
    created = domain.metadata.creation_timestamp
    assert created is not None  # the API server sets it
    return created


def _failure(view: View, after: ComputeDomainStatus) -> Failure | None:
    """Why the domain has not formed; an empty one that nobody asks more of is as it should be."""
    ready = after.condition(ConditionType.READY)
    if view.is_leaving:
        return Failure(keys.Outcome.CANCELLED, "Deleted", "deleted before it had formed")
    if ready is None or ready.status == "True":
        return None
    accepted = after.condition(ConditionType.ACCEPTED)
    is_final = accepted is not None and accepted.status == "False"
    outcome = keys.Outcome.PERMANENT if is_final else keys.Outcome.RETRYABLE
    return Failure(outcome, ready.reason, ready.message)
