# SPDX-License-Identifier: Apache-2.0
"""Reconciles one domain: its children, its status, its teardown.

A reconciliation compares what is there with what should be, and writes the difference. It can run
at any time and any number of times, and keeps no state that it could not do without.
Source: docs/reference/compute-domain.md, "Reconcile of a domain", "Status and readiness", "Clean-up
of stale objects".
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from nvdra_api import names
from nvdra_api.errors import DriverError, PermanentError, Reason
from nvdra_api.ids import DomainUID
from nvdra_api.v1beta1.compute_domain import ComputeDomainStatus
from nvdra_runtime.kube.event_recorder import EventRecorder, ObjectReference
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.telemetry import keys, logs, trace_ids
from nvdra_runtime.telemetry.active_span import ActiveSpan
from nvdra_runtime.telemetry.instrumentation import SpanScope, Telemetry, domain_attributes

from nvdra_cd_controller import (
    children,
    fixed_settings,
    members,
    network_policies,
    status,
    teardown,
)
from nvdra_cd_controller.children import ChildConfig
from nvdra_cd_controller.clique_writer import CliqueWriter, CliqueWriterResult
from nvdra_cd_controller.deleted_domains import DeletedDomains
from nvdra_cd_controller.domain_root_span import ANNOTATION, DomainRootSpan
from nvdra_cd_controller.domain_snapshot import TEMPLATE, DomainSnapshot
from nvdra_cd_controller.informers import DomainInformers
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
        informers: DomainInformers,
        writer: ObjectWriter,
        child_config: ChildConfig,
        events: EventRecorder,
        telemetry: Telemetry[DomainMetrics],
        clock: Clock,
        missing_pods: MissingPods,
        deleted_domains: DeletedDomains,
    ) -> None:
        self._missing_pods = missing_pods
        self._informers = informers
        self._writer = writer
        self._child_config = child_config
        self._events = events
        self._telemetry = telemetry
        self._clock = clock
        self._root_span = DomainRootSpan(telemetry, clock)
        self._clique_writer = CliqueWriter(writer, telemetry)
        self._teardown = TeardownRunner(informers, writer)
        self._deleted_domains = deleted_domains

    async def reconcile(self, uid: DomainUID) -> float | None:
        """Reconcile one domain.

        Returns:
            Seconds until the domain must be reconciled again even if nothing changes; None if it
            need not be.

        Raises:
            DriverError: Something could not be done. The domain's status says so if it exists.
        """
        try:
            return await self._reconcile(self._informers.snapshot(uid))
        except DriverError:
            raise
        except Exception as error:  # a bug must not stop other domains; the operation logs it
            raise PermanentError(
                Reason.INTERNAL,
                f"ComputeDomain {uid}: {error!r}",
                "this is a bug: report it with the log",
            ) from error

    async def _reconcile(self, snapshot: DomainSnapshot) -> float | None:
        if snapshot.domain is None:
            return await self._clean_up_deleted(snapshot)
        if snapshot.is_terminating:
            return await self._reconcile_terminating(snapshot)
        return await self._reconcile_live(snapshot)

    async def _reconcile_live(self, snapshot: DomainSnapshot) -> float | None:
        with self._operation(RECONCILE, snapshot) as span:
            wrote = False
            failure: DriverError | None = None
            try:
                wrote = await self._ensure_children(snapshot)
            except DriverError as error:
                failure = error
            snapshot = self._informers.snapshot(snapshot.uid)
            if snapshot.domain is None or snapshot.is_terminating:
                return 0.0
            max_nodes = fixed_settings.of_domain(snapshot, self._child_config).max_nodes
            clique_failure: DriverError | None = None
            cliques = CliqueWriterResult(False, None)
            try:
                cliques = await self._clique_writer.write(snapshot, max_nodes)
            except DriverError as error:
                clique_failure = error  # the status says how the members are, all the same
            wrote |= cliques.has_written
            snapshot = self._informers.snapshot(snapshot.uid)
            if snapshot.domain is None or snapshot.is_terminating:
                return 0.0
            current = self._members(snapshot)
            pod_due_s = await self._missing_pods.inquire(snapshot.uid, current, snapshot.daemonsets)
            after, wrote_status = await self._update_status(
                self._informers.snapshot(snapshot.uid), failure
            )
            wrote |= await self._write_root_span(snapshot, after)
            span.set_attribute(keys.MEMBERS, after.expected_nodes)
            if not (wrote or wrote_status):
                span.discard()
            first_failure = failure or clique_failure
            if first_failure is not None:
                raise first_failure
        dues = (
            cliques.due_in_s,
            self._root_span.due_in_s(self._informers.snapshot(snapshot.uid)),
            pod_due_s,
            status.silence_due_in_s(current, self._clock.now()),
        )
        return min((due_s for due_s in dues if due_s is not None), default=None)

    async def _ensure_children(self, snapshot: DomainSnapshot) -> bool:
        """Add the finalizer and create or correct the children. Returns whether it has written."""
        assert snapshot.domain is not None
        domain, config = snapshot.domain, self._child_config
        annotations: dict[str, str] = {}
        if not config.is_host_managed:
            settings = fixed_settings.of_domain(snapshot, config)
            config = fixed_settings.applied(config, settings)
            annotations = fixed_settings.missing_annotation(snapshot, settings)
        wrote = await self._writer.prepare_domain(snapshot, annotations)
        if not config.is_host_managed:
            namespace = _daemon_namespace(snapshot, config)
            with self._telemetry.step("ensure network policy") as step:
                wrote |= _discard_unless_written(
                    step, await self._ensure_network_policy(snapshot, namespace)
                )
            with self._telemetry.step("ensure daemonset") as step:
                template = children.daemon_claim_template(domain, namespace)
                daemonset = children.daemonset(domain.uid, namespace, config)
                wrote_child = await self._writer.ensure(
                    TEMPLATE, template, snapshot.daemon_templates
                )
                wrote_child |= await self._writer.ensure(
                    "DaemonSet", daemonset, snapshot.daemonsets
                )
                wrote |= _discard_unless_written(step, wrote_child)
        with self._telemetry.step("ensure claim templates") as step:
            try:
                template = children.workload_claim_template(domain, config)
            except ValueError as error:
                raise PermanentError(
                    Reason.INVALID_CONFIG,
                    f"ComputeDomain {_namespaced_name(snapshot)} is not valid: {error}",
                    "delete it and create it again with a valid spec",
                ) from error
            wrote_child = await self._writer.ensure(TEMPLATE, template, snapshot.workload_templates)
            wrote |= _discard_unless_written(step, wrote_child)
        return wrote

    async def _ensure_network_policy(self, snapshot: DomainSnapshot, namespace: str) -> bool:
        """Before there can be daemons. Where policies are off, remove what was made before."""
        desired = children.network_policy(snapshot.uid, namespace, self._child_config)
        if desired is None:
            return await self._writer.remove(snapshot.network_policies)
        return await self._writer.ensure(network_policies.KIND, desired, snapshot.network_policies)

    async def _update_status(
        self, snapshot: DomainSnapshot, failure: DriverError | None, waits_for: str = ""
    ) -> tuple[ComputeDomainStatus, bool]:
        """Write the status if it has changed, and Events. Returns it and whether it has changed."""
        assert snapshot.domain is not None
        before = snapshot.domain.status
        desired = status.desired(
            snapshot.domain, self._status_inputs(snapshot, failure, waits_for), self._clock.now()
        )
        after = ComputeDomainStatus.model_validate(desired)
        if desired == snapshot.stored.get("status"):
            return after, False
        with self._telemetry.step("write status"):
            await self._writer.update_status(snapshot, desired)
        if not before.status and not failure and not waits_for:
            self._observe_phase("children", snapshot.domain.metadata.creation_timestamp)
        subject, trace = _event_subject(snapshot), trace_ids.trace_id(snapshot.uid)
        for event in status.events(before, after):
            self._events.emit((subject,), event.type, event.reason, event.message, trace)
        return after, True

    def _status_inputs(
        self, snapshot: DomainSnapshot, failure: DriverError | None, waits_for: str
    ) -> StatusInputs:
        return StatusInputs(
            members=self._members(snapshot),
            failure=failure,
            all_children_exist=_all_children_exist(snapshot, self._child_config),
            waits_for=waits_for,
            is_host_managed=self._child_config.is_host_managed,
            max_nodes=fixed_settings.of_domain(snapshot, self._child_config).max_nodes,
            has_unread_cliques=snapshot.has_unread_cliques,
        )

    def _members(self, snapshot: DomainSnapshot) -> tuple[Member, ...]:
        assert snapshot.domain is not None
        return members.current(
            snapshot.cliques,
            snapshot.pods,
            snapshot.nodes,
            snapshot.domain.status.nodes,
            self._missing_pods.cause(snapshot.uid),
        )

    async def _write_root_span(self, snapshot: DomainSnapshot, after: ComputeDomainStatus) -> bool:
        """Write the trace's root span if it is due. Returns whether an object was annotated."""
        if not self._root_span.is_due(snapshot, after):
            return False
        value = self._root_span.write(snapshot, after)
        child = self._root_span.annotated_child(snapshot)
        if child is None:
            return False
        await self._writer.annotate(child, ANNOTATION, value)
        return True

    async def _reconcile_terminating(self, snapshot: DomainSnapshot) -> float | None:
        assert snapshot.domain is not None
        with self._operation(TEARDOWN, snapshot) as span:
            await self._write_root_span(snapshot, snapshot.domain.status)
            result = await self._teardown.run(snapshot)
            wrote_status = False
            if result.waits_for:
                span.set_attribute(keys.WAITS_FOR, result.waits_for)
                if result.snapshot.domain is not None:
                    _, wrote_status = await self._update_status(
                        result.snapshot, None, result.waits_for
                    )
            if not (result.has_acted or wrote_status):
                span.discard()
        if not result.waits_for:
            self._observe_phase(TEARDOWN, snapshot.domain.metadata.deletion_timestamp)
        return REQUEUE_S if result.is_stuck else None

    async def _clean_up_deleted(self, snapshot: DomainSnapshot) -> float | None:
        """Remove what a deleted domain has left behind: an orphan, or a label that came late."""
        self._root_span.forget(snapshot.uid)
        self._clique_writer.forget(snapshot.uid)
        self._missing_pods.forget(snapshot.uid)
        if teardown.next_step(snapshot) == teardown.COMPLETE:
            return None
        if not await self._deleted_domains.contains(snapshot.uid):
            return REQUEUE_S  # it may exist; the watch has not reported it yet
        LOG.info("Cleaning up after a deleted ComputeDomain", uid=snapshot.uid)
        with self._operation(TEARDOWN, snapshot) as span:
            result = await self._teardown.run(snapshot)
            if result.waits_for:
                span.set_attribute(keys.WAITS_FOR, result.waits_for)
            if not result.has_acted:
                span.discard()
        return REQUEUE_S if result.is_stuck else None

    def _observe_phase(self, phase: str, since: datetime | None) -> None:
        if since is not None:
            seconds = (self._clock.now() - since).total_seconds()
            self._telemetry.metrics.observe_phase(phase, max(0.0, seconds))

    def _operation(self, name: str, snapshot: DomainSnapshot) -> SpanScope:
        metadata = snapshot.domain.metadata if snapshot.domain else None
        return self._telemetry.operation(
            name,
            trace=trace_ids.trace_id(snapshot.uid),
            parent=trace_ids.domain_root_span_id(snapshot.uid),
            attributes=domain_attributes(
                metadata.namespace if metadata else "",
                metadata.name if metadata else "",
                snapshot.uid,
            ),
        )


def _daemon_namespace(snapshot: DomainSnapshot, child_config: ChildConfig) -> str:
    """Namespace of the domain's daemons: where they are, or else where new ones are created."""
    for child in (*snapshot.daemonsets, *snapshot.daemon_templates):
        return child.namespace
    return child_config.namespace


def _all_children_exist(snapshot: DomainSnapshot, child_config: ChildConfig) -> bool:
    kinds: list[Sequence[object]] = [snapshot.workload_templates]
    if not child_config.is_host_managed:
        kinds += [snapshot.daemon_templates, snapshot.daemonsets]
        if child_config.network_rules is not None:
            kinds.append(snapshot.network_policies)
    return all(kinds) and not any(child.is_terminating for child in snapshot.children)


def _discard_unless_written(step: ActiveSpan, wrote: bool) -> bool:
    """Discard the span of a step that has written nothing."""
    if not wrote:
        step.discard()
    return wrote


def _namespaced_name(snapshot: DomainSnapshot) -> str:
    metadata = snapshot.stored["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}"


def _event_subject(snapshot: DomainSnapshot) -> ObjectReference:
    metadata = snapshot.stored["metadata"]
    return ObjectReference(
        names.NVIDIA_API_VERSION,
        names.DOMAIN_KIND,
        metadata["name"],
        metadata["uid"],
        metadata["namespace"],
    )
