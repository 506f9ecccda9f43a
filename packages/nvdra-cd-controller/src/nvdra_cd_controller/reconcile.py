"""One domain, start to end: its children, its status, its teardown.

Looks at what is there, does what is missing, and can be called at any time, any number of times;
nothing is remembered between two calls but what saves a write.
Source: spec/compute-domain.md §§6.5, 6.8, 6.10; style.md §10.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from nvdra_api.protocol import identity
from nvdra_api.runtime.kube.events import Events, Subject
from nvdra_api.runtime.process.clock import Clock
from nvdra_api.runtime.telemetry import logs
from nvdra_api.runtime.telemetry.active import ActiveSpan
from nvdra_api.runtime.telemetry.traces import Scope, Telemetry, domain_attributes
from nvdra_api.types import keys, names
from nvdra_api.types.domains import ComputeDomainStatus
from nvdra_api.types.errors import DriverError, PermanentError, Reason
from nvdra_api.types.ids import DomainUID

from nvdra_cd_controller import children, members, status, teardown
from nvdra_cd_controller.children import Making
from nvdra_cd_controller.cluster import Cluster
from nvdra_cd_controller.metrics import RECONCILE, TEARDOWN, DomainMetrics
from nvdra_cd_controller.roots import ANNOTATION, Roots
from nvdra_cd_controller.status import Facts
from nvdra_cd_controller.teardown import Action, Step
from nvdra_cd_controller.view import View
from nvdra_cd_controller.writes import Writes

LOG: Final = logs.logger(__name__)

LOOK_AGAIN_S: Final = 1.0
"""After an answer that the watch should soon explain."""


class Reconciler:
    """Brings domains to what they should be."""

    def __init__(
        self,
        seen: Cluster,
        writes: Writes,
        making: Making,
        events: Events,
        telemetry: Telemetry[DomainMetrics],
        clock: Clock,
    ) -> None:
        self._cluster = seen
        self._writes = writes
        self._making = making
        self._events = events
        self._telemetry = telemetry
        self._clock = clock
        self._roots = Roots(telemetry, clock)

    async def reconcile(self, uid: DomainUID) -> float | None:
        """Bring one domain up to date.

        Returns:
            In how many seconds to look again although nothing changes; None: not at all.

        Raises:
            DriverError: something could not be done; the domain's status says so where it can.
        """
        try:
            return await self._look(uid)
        except DriverError:
            raise
        except Exception as error:  # one domain's bug is one domain's; the operation logs it
            raise PermanentError(
                Reason.INTERNAL, f"ComputeDomain {uid}: {error!r}", "report it with the log"
            ) from error

    async def _look(self, uid: DomainUID) -> float | None:
        view = self._cluster.view(uid)
        if view.domain is None:
            return await self._clear(view)
        if view.is_leaving:
            return await self._take_down(view)
        return await self._keep(view)

    async def _keep(self, view: View) -> float | None:
        with self._operation(RECONCILE, view) as span:
            wrote = False
            failure: DriverError | None = None
            try:
                wrote = await self._ensure(view)
            except DriverError as error:
                failure = error
            view = self._cluster.view(view.uid)
            if view.domain is None or view.is_leaving:
                return 0.0
            wrote |= await self._prune(view)
            after, wrote_status = await self._tell(self._cluster.view(view.uid), failure)
            wrote |= await self._root(view, after)
            span.set(keys.MEMBERS, after.expected_nodes)
            if not (wrote or wrote_status):
                span.discard()
            if failure is not None:
                raise failure
        return self._roots.due_in_s(self._cluster.view(view.uid))

    async def _ensure(self, view: View) -> bool:
        """Finalizer and children; whether anything was written."""
        assert view.domain is not None
        uid, making = view.uid, self._making
        wrote = False
        if names.DOMAIN_FINALIZER not in (view.stored["metadata"].get("finalizers") or ()):
            await self._writes.claim(view)
            wrote = True
        if not making.is_host_managed:
            with self._telemetry.step("ensure daemonset") as step:
                home = _home(view, making)
                template = children.daemon_template(uid, home)
                daemonset = children.daemonset(uid, home, making)
                made = await self._writes.ensure(
                    "ResourceClaimTemplate", template, view.daemon_templates
                )
                made |= await self._writes.ensure("DaemonSet", daemonset, view.daemonsets)
                wrote |= _kept(step, made)
        with self._telemetry.step("ensure claim templates") as step:
            try:
                wanted = children.workload_template(view.domain, making)
            except ValueError as error:
                raise PermanentError(
                    Reason.INVALID_CONFIG,
                    f"ComputeDomain {_called(view)} cannot be served: {error}",
                    "delete it and make it again with a spec",
                ) from error
            made = await self._writes.ensure(
                "ResourceClaimTemplate", wanted, view.workload_templates
            )
            wrote |= _kept(step, made)
        return wrote

    async def _prune(self, view: View) -> bool:
        """Take out of the cliques who is gone; whether anything was written."""
        wrote = False
        for clique in view.cliques:
            others = [each for each in view.cliques if each is not clique]
            stale = members.stale(clique, others, view.pods, view.nodes)
            if stale:
                with self._telemetry.step("prune clique"):
                    await self._writes.prune(clique.metadata.name, clique.metadata.namespace, stale)
                wrote = True
        return wrote

    async def _tell(
        self, view: View, failure: DriverError | None, waits_for: str = ""
    ) -> tuple[ComputeDomainStatus, bool]:
        """Write the status if it changed, and Events of what is new in it."""
        assert view.domain is not None
        before = view.domain.status
        wanted = status.wanted(
            view.domain, self._facts(view, failure, waits_for), self._clock.now()
        )
        after = ComputeDomainStatus.model_validate(wanted)
        if wanted == view.stored.get("status"):
            return after, False
        with self._telemetry.step("write status"):
            await self._writes.status(view, wanted)
        if not before.status and not failure and not waits_for:
            self._observe("children", view.domain.metadata.creation_timestamp)
        trace = identity.trace_id(view.uid)
        for news in status.news(before, after):
            self._events.emit((_subject(view),), news.type, news.reason, news.message, trace)
        return after, True

    def _facts(self, view: View, failure: DriverError | None, waits_for: str) -> Facts:
        assert view.domain is not None
        found = members.of(view.cliques, view.pods, view.nodes, view.domain.status.nodes)
        return Facts(
            members=found,
            failure=failure,
            are_children_there=_are_children_there(view, self._making),
            waits_for=waits_for,
            is_host_managed=self._making.is_host_managed,
            max_nodes=self._making.max_nodes,
        )

    async def _root(self, view: View, after: ComputeDomainStatus) -> bool:
        """Write the root of the trace when it is due; whether an object was written for it."""
        if not self._roots.due(view, after):
            return False
        value = self._roots.write(view, after)
        keeper = self._roots.keeper(view)
        if keeper is None:
            return False
        await self._writes.annotate(keeper, ANNOTATION, value)
        return True

    async def _take_down(self, view: View) -> float | None:
        assert view.domain is not None
        with self._operation(TEARDOWN, view) as span:
            await self._root(view, view.domain.status)
            after, step, is_stuck, acted = await self._work_through(view)
            if step.waits_for:
                span.set(keys.WAITS_FOR, step.waits_for)
            if after.domain is not None and step.waits_for:
                acted |= (await self._tell(after, None, step.waits_for))[1]
            if not acted:
                span.discard()
        if not step.waits_for:
            self._observe(TEARDOWN, view.domain.metadata.deletion_timestamp)
        return LOOK_AGAIN_S if is_stuck else None

    async def _clear(self, view: View) -> float | None:
        """Take away what is left of a domain that is gone: a late label, an orphan."""
        self._roots.forget(view.uid)
        if not view.children and not view.nodes:
            return None
        if not await self._writes.is_absent(view):
            return LOOK_AGAIN_S  # it is there, and our watch has not come to it yet
        LOG.info("Clearing what a domain left behind", uid=view.uid)
        with self._operation(TEARDOWN, view) as span:
            _, step, is_stuck, acted = await self._work_through(view)
            if step.waits_for:
                span.set(keys.WAITS_FOR, step.waits_for)
            if not acted:
                span.discard()
        return LOOK_AGAIN_S if is_stuck else None

    async def _work_through(self, view: View) -> tuple[View, Step, bool, bool]:
        """Do what can be done now of a teardown.

        Returns:
            What is there afterwards, the step that is left, whether our picture did not follow what
            was done, and whether anything was done.
        """
        previous: Step | None = None
        while True:
            step = teardown.next_step(view)
            if not step.actions:
                return view, step, False, previous is not None
            if step == previous:
                return view, step, True, True
            await self._perform(view, step)
            previous, view = step, self._cluster.view(view.uid)

    async def _perform(self, view: View, step: Step) -> None:
        """The actions of one step at once; the first failure is raised when all have ended."""
        failures: list[DriverError] = []

        async def attempt(action: Action) -> None:
            try:
                await self._writes.perform(view, action)
            except DriverError as error:
                failures.append(error)

        async with asyncio.TaskGroup() as group:
            for action in step.actions:
                group.create_task(attempt(action))
        if failures:
            raise failures[0]

    def _observe(self, phase: str, since: datetime | None) -> None:
        if since is not None:
            seconds = (self._clock.now() - since).total_seconds()
            self._telemetry.metrics.phase(phase, max(0.0, seconds))

    def _operation(self, name: str, view: View) -> Scope:
        metadata = view.domain.metadata if view.domain else None
        return self._telemetry.operation(
            name,
            trace=identity.trace_id(view.uid),
            parent=identity.domain_root(view.uid),
            attributes=domain_attributes(
                metadata.namespace if metadata else "",
                metadata.name if metadata else "",
                view.uid,
            ),
        )


def _home(view: View, making: Making) -> str:
    """Where the daemons are, or are to be: they stay in the namespace they were made in."""
    for child in (*view.daemonsets, *view.daemon_templates):
        return child.namespace
    return making.namespace


def _are_children_there(view: View, making: Making) -> bool:
    kinds: Sequence[Sequence[object]] = (
        [view.workload_templates]
        if making.is_host_managed
        else [view.workload_templates, view.daemon_templates, view.daemonsets]
    )
    return all(kinds) and not any(child.is_leaving for child in view.children)


def _kept(step: ActiveSpan, made: bool) -> bool:
    """A step that found all as it should be leaves no span."""
    if not made:
        step.discard()
    return made


def _called(view: View) -> str:
    metadata = view.stored["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}"


def _subject(view: View) -> Subject:
    metadata = view.stored["metadata"]
    return Subject(
        names.CONFIG_API_VERSION,
        names.DOMAIN_KIND,
        metadata["name"],
        metadata["uid"],
        metadata["namespace"],
    )
