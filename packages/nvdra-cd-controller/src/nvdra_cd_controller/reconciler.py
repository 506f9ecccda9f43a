# SPDX-License-Identifier: Apache-2.0
"""Reconciles one domain: its children, its status, its teardown.

A reconciliation compares what is there with what should be, and writes the difference. It can run
at any time and any number of times, and keeps no state that it could not do without. One that
writes nothing, and does not fail, is in no trace.
Source: docs/reference/compute-domain.md, "Reconcile of a domain", "Status and readiness", "Clean-up
of stale objects".
"""

from datetime import datetime
from typing import Final

from nvdra_api import names
from nvdra_api.errors import DriverError, PermanentError, Reason
from nvdra_api.ids import DomainUID
from nvdra_api.v1beta1.compute_domain import ComputeDomainStatus
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.event_recorder import EventRecorder, ObjectReference
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.telemetry import keys, logs, trace_ids
from nvdra_runtime.telemetry.instrumentation import SpanScope, Telemetry, domain_attributes
from nvdra_runtime.telemetry.metrics.process_metrics import ProcessMetrics

from nvdra_cd_controller import fixed_settings, members, status, teardown
from nvdra_cd_controller.children import ChildConfig
from nvdra_cd_controller.children_writer import ChildrenWriter
from nvdra_cd_controller.clique_writer import CliqueWriter
from nvdra_cd_controller.deleted_domains import DeletedDomains
from nvdra_cd_controller.domain_root_span import DomainRootSpan
from nvdra_cd_controller.domain_snapshot import DomainSnapshot
from nvdra_cd_controller.informers import DomainInformers
from nvdra_cd_controller.lost_nodes import LostNodes
from nvdra_cd_controller.members import Member
from nvdra_cd_controller.metrics import RECONCILE, TEARDOWN, DomainMetrics
from nvdra_cd_controller.missing_pods import MissingPods
from nvdra_cd_controller.object_writer import ObjectWriter
from nvdra_cd_controller.status import StatusInputs
from nvdra_cd_controller.teardown_runner import TeardownRunner

LOG: Final = logs.logger(__name__)

REQUEUE_S: Final = 1.0
"""Delay until a domain is reconciled again that the caches do not show as it is yet."""


class Reconciler:
    """Reconciles the domains of one controller."""

    def __init__(
        self,
        api: Client,
        informers: DomainInformers,
        child_config: ChildConfig,
        events: EventRecorder,
        telemetry: Telemetry[ProcessMetrics],
        metrics: DomainMetrics,
        clock: Clock,
    ) -> None:
        self._informers = informers
        self._child_config = child_config
        self._events = events
        self._telemetry = telemetry
        self._metrics = metrics
        self._clock = clock
        self._writer = ObjectWriter(api, informers)
        self._children = ChildrenWriter(self._writer, telemetry, child_config)
        self._cliques = CliqueWriter(self._writer, telemetry)
        self._missing_pods = MissingPods(api)
        self._lost_nodes = LostNodes(api)
        self._root_span = DomainRootSpan(self._writer, telemetry, metrics, clock)
        self._teardown = TeardownRunner(informers, self._writer)
        self._deleted_domains = DeletedDomains(api, informers.domain_uids)

    async def reconcile(self, uid: DomainUID) -> float | None:
        """Reconcile one domain.

        Returns:
            Seconds until the domain must be reconciled again even if nothing changes; None if it
            need not be.

        Raises:
            DriverError: Something could not be done. The domain's status says so if it exists.
        """
        try:
            snapshot = self._informers.snapshot(uid)
            if snapshot.domain is None:
                return await self._clean_up_deleted(snapshot)
            if snapshot.is_terminating:
                return await self._tear_down(snapshot)
            return await self._reconcile_live(snapshot)
        except DriverError:
            raise
        except Exception as error:  # a bug must not stop other domains; the operation logs it
            raise PermanentError(
                Reason.INTERNAL,
                f"ComputeDomain {uid}: {error!r}",
                "this is a bug: report it with the log",
            ) from error

    async def _reconcile_live(self, snapshot: DomainSnapshot) -> float | None:
        uid = snapshot.uid
        with self._operation(RECONCILE, snapshot) as operation:
            failure: DriverError | None = None
            try:
                await self._children.ensure(snapshot)
            except DriverError as error:
                failure = error  # the status says it, and how the members are all the same
            snapshot = self._informers.snapshot(uid)
            if snapshot.is_terminating:
                return 0.0
            cliques = await self._cliques.write(snapshot, self._max_nodes(snapshot))
            snapshot = self._informers.snapshot(uid)
            if snapshot.is_terminating:
                return 0.0
            current = self._members(snapshot)
            pod_due_s = await self._missing_pods.inquire(uid, current, snapshot.daemonsets)
            node_due_s = await self._lost_nodes.inquire(uid, snapshot.pods)
            after = await self._update_status(self._informers.snapshot(uid), failure)
            await self._root_span.write_if_due(snapshot, after)
            operation.set_attribute(keys.MEMBERS, after.expected_nodes)
            failure = failure or cliques.failure
            if failure is not None:
                raise failure
        dues = (
            cliques.due_in_s,
            self._root_span.due_in_s(self._informers.snapshot(uid), after),
            pod_due_s,
            node_due_s,
            status.silence_due_in_s(current, self._clock.now()),
        )
        return min((due_s for due_s in dues if due_s is not None), default=None)

    async def _tear_down(self, snapshot: DomainSnapshot) -> float | None:
        domain = snapshot.domain
        with self._operation(TEARDOWN, snapshot) as operation:
            if domain is not None:
                await self._root_span.write_if_due(snapshot, domain.status)
            result = await self._teardown.run(snapshot)
            if result.waits_for:
                operation.set_attribute(keys.WAITS_FOR, result.waits_for)
                if result.snapshot.domain is not None:
                    await self._update_status(result.snapshot, None, result.waits_for)
        if domain is not None and not result.waits_for:
            self._observe_phase(TEARDOWN, domain.metadata.deletion_timestamp)
        return REQUEUE_S if result.is_stuck else None

    async def _clean_up_deleted(self, snapshot: DomainSnapshot) -> float | None:
        """Remove what a deleted domain has left behind: an orphan, or a label that came late."""
        for memory in (self._root_span, self._cliques, self._missing_pods, self._lost_nodes):
            memory.forget(snapshot.uid)
        if teardown.next_step(snapshot) == teardown.COMPLETE:
            return None
        if not await self._deleted_domains.contains(snapshot.uid):
            return REQUEUE_S  # it may exist; the watch has not reported it yet
        LOG.info("Cleaning up after a deleted ComputeDomain", uid=snapshot.uid)
        return await self._tear_down(snapshot)

    async def _update_status(
        self, snapshot: DomainSnapshot, failure: DriverError | None, waits_for: str = ""
    ) -> ComputeDomainStatus:
        """Write the status, and the Events about it, if it has changed. Returns the status."""
        assert snapshot.domain is not None
        before = snapshot.domain.status
        inputs = StatusInputs(
            members=self._members(snapshot),
            failure=failure,
            all_children_exist=self._children.all_exist(snapshot),
            waits_for=waits_for,
            is_host_managed=self._child_config.is_host_managed,
            max_nodes=self._max_nodes(snapshot),
            has_unread_cliques=snapshot.has_unread_cliques,
        )
        desired = status.desired(snapshot.domain, inputs, self._clock.now())
        after = ComputeDomainStatus.model_validate(desired)
        if desired != snapshot.stored.get("status"):
            with self._telemetry.step("write status"):
                await self._writer.update_status(snapshot, desired)
            if not before.status and not failure and not waits_for:
                self._observe_phase("children", snapshot.domain.metadata.creation_timestamp)
            subject, trace = _event_subject(snapshot), trace_ids.trace_id(snapshot.uid)
            for event in status.events(before, after):
                self._events.emit((subject,), event.type, event.reason, event.message, trace)
        return after

    def _members(self, snapshot: DomainSnapshot) -> tuple[Member, ...]:
        assert snapshot.domain is not None
        return members.current(
            snapshot.cliques,
            self._lost_nodes.judged(snapshot.uid, snapshot.pods),
            snapshot.nodes,
            snapshot.domain.status.nodes,
            self._missing_pods.cause(snapshot.uid),
        )

    def _max_nodes(self, snapshot: DomainSnapshot) -> int:
        return fixed_settings.of_domain(snapshot, self._child_config).max_nodes

    def _observe_phase(self, phase: str, since: datetime | None) -> None:
        if since is not None:
            seconds = (self._clock.now() - since).total_seconds()
            self._metrics.observe_phase(phase, max(0.0, seconds))

    def _operation(self, name: str, snapshot: DomainSnapshot) -> SpanScope:
        """The span of a piece of work on a domain, in the trace that all its writers derive."""
        metadata = snapshot.stored.get("metadata") or {}
        return self._telemetry.operation(
            name,
            trace=trace_ids.trace_id(snapshot.uid),
            parent=trace_ids.domain_root_span_id(snapshot.uid),
            attributes=domain_attributes(
                metadata.get("namespace", ""), metadata.get("name", ""), snapshot.uid
            ),
        ).discarded_unless_written()


def _event_subject(snapshot: DomainSnapshot) -> ObjectReference:
    metadata = snapshot.stored["metadata"]
    return ObjectReference(
        names.NVIDIA_API_VERSION,
        names.DOMAIN_KIND,
        metadata["name"],
        metadata["uid"],
        metadata["namespace"],
    )
