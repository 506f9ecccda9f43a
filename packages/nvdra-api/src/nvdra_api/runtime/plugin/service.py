"""The kubelet's calls: one task per claim, an answer for each, always before the caller gives up.

The only place besides the top of a loop where errors are caught: a known one becomes its reason, an
unknown one becomes Internal, and one claim's bug is one claim's. Source: style.md §§12, 13.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from nvdra_api.protocol import identity
from nvdra_api.protocol.identity import Link
from nvdra_api.runtime.plugin import roots
from nvdra_api.runtime.plugin.fetching import Fetch
from nvdra_api.runtime.plugin.held import HeldClaims
from nvdra_api.runtime.plugin.rebuild import Rebuild
from nvdra_api.runtime.plugin.refusals import Refusals
from nvdra_api.runtime.plugin.roots import Roots
from nvdra_api.runtime.plugin.turns import Tell, Turns
from nvdra_api.runtime.process.clock import Clock
from nvdra_api.runtime.process.flights import Flights
from nvdra_api.runtime.telemetry import logs
from nvdra_api.runtime.telemetry.calls import Call
from nvdra_api.runtime.telemetry.traces import Scope, Telemetry, claim_attributes, claim_parent
from nvdra_api.types import keys
from nvdra_api.types.claims import ClaimRef, ResourceClaim
from nvdra_api.types.errors import DriverError
from nvdra_api.types.holdings import H, Holding
from nvdra_api.types.ids import ClaimUID, NodeName
from nvdra_api.types.prepared import PreparedClaim

LOG = logs.logger(__name__)

MARGIN_S = 2.0
"""How long before the caller gives up it is answered (spec/tracing.md §3)."""

T = TypeVar("T")
H_contra = TypeVar("H_contra", bound=Holding, contravariant=True)


class Preparer(Protocol[H_contra]):
    """What one driver does for a claim; any error it raises is the answer to its caller."""

    async def prepare(self, claim: ResourceClaim, deadline: float, tell: Tell) -> PreparedClaim:
        """Give the claim what it was allocated; it is held when this returns.

        Args:
            claim: As it was read just now.
            deadline: Monotonic seconds; every wait ends by then.
            tell: Tells the user why it takes long.
        """

    async def repeat(self, holding: H_contra, deadline: float) -> PreparedClaim:
        """Answer for a claim that is held as before, after proving that the answer is true."""

    async def unprepare(self, holding: H_contra, deadline: float) -> None:
        """Take back what the claim holds; it is held no more when this returns."""


class _Limits(NamedTuple):
    """When things end, in the loop's monotonic seconds.

    Attributes:
        work: The last moment for each wait inside an operation, which then says what it waited for.
        answer: When the caller is answered although the operation has not even said that.
    """

    work: float
    answer: float


class Service(Generic[H]):
    """What `kubelet.server` calls; implements its `Handler`."""

    def __init__(
        self,
        node: NodeName,
        fetch: Fetch,
        preparer: Preparer[H],
        held: HeldClaims[H],
        rebuild: Rebuild[H],
        turns: Turns,
        flights: Flights[ClaimUID],
        roots: Roots,
        refusals: Refusals,
        telemetry: Telemetry,
        clock: Clock,
    ) -> None:
        self._node = node
        self._fetch = fetch
        self._preparer = preparer
        self._held = held
        self._rebuild = rebuild
        self._turns = turns
        self._flights = flights
        self._roots = roots
        self._refusals = refusals
        self._telemetry = telemetry
        self._clock = clock
        self._attempts: Counter[ClaimUID] = Counter()

    async def prepare(
        self, claims: Sequence[ClaimRef], deadline: float, traceparent: str | None
    ) -> Mapping[ClaimUID, PreparedClaim | str]:
        """Prepare every claim of the call, side by side."""
        return await self._each(claims, keys.PREPARE, self._prepare, deadline, traceparent)

    async def unprepare(
        self, claims: Sequence[ClaimRef], deadline: float, traceparent: str | None
    ) -> Mapping[ClaimUID, str | None]:
        """Unprepare every claim of the call; one that is not held is done already."""
        for ref in claims:
            self._turns.give_up(ref.uid)
        try:
            return await self._each(claims, keys.UNPREPARE, self._unprepare, deadline, traceparent)
        finally:
            for ref in claims:
                self._turns.want(ref.uid)

    async def release(self, ref: ClaimRef, deadline: float) -> None:
        """Unprepare a claim that the kubelet knows nothing of any more.

        Raises:
            DriverError: It is still held.
        """
        start = partial(self._unprepare, ref, deadline, ())
        await self._flights.join(ref.uid, keys.UNPREPARE, start, deadline)

    async def _each(
        self,
        claims: Sequence[ClaimRef],
        kind: str,
        work: Callable[[ClaimRef, float, tuple[Link, ...]], Coroutine[Any, Any, T]],
        deadline: float,
        traceparent: str | None,
    ) -> dict[ClaimUID, T | str]:
        limits, links = _limits(deadline), _links(traceparent)

        def answered(ref: ClaimRef) -> Coroutine[Any, Any, T | str]:
            return self._answered(ref, kind, lambda: work(ref, limits.work, links), limits.answer)

        if len(claims) == 1:  # the usual call: no task is needed to wait for one
            return {claims[0].uid: await answered(claims[0])}
        async with asyncio.TaskGroup() as group:
            tasks = {ref.uid: group.create_task(answered(ref)) for ref in claims}
        return {uid: task.result() for uid, task in tasks.items()}

    async def _answered(
        self, ref: ClaimRef, kind: str, start: Callable[[], Coroutine[Any, Any, T]], limit: float
    ) -> T | str:
        """What the operation returns, or the text of why it failed; measured to the answer."""
        with self._telemetry.call(kind, identity.trace_id(ref.uid)) as call:
            call.device_kind = self._kind(ref)
            try:
                result = await self._flights.join(ref.uid, kind, start, limit)
            except Exception as error:  # noqa: BLE001 - one claim's bug must not be another's answer
                refused = self._refused(ref, kind, error, call)
                return refused.answer(call.trace)
            call.device_kind = self._kind(ref) or call.device_kind
            return result

    def _refused(self, ref: ClaimRef, kind: str, error: Exception, call: Call) -> DriverError:
        """The failure to answer with; it is dated once told, by the operation if that has ended."""
        if isinstance(error, DriverError) and error.since is not None:
            call.fail(error)
            return error
        refused = self._refusals.note(ref, kind, error)
        call.fail(refused)
        trace, root = claim_parent(ref, self._node)
        self._telemetry.retroactive(
            f"wait {kind}",
            trace=trace,
            parent=root,
            start=call.started,
            end=self._clock.now(),
            attributes={keys.OUTCOME: keys.Outcome.RETRYABLE},
            failure=call.failure,
        )
        LOG.warning(
            "Answered although the work goes on",
            claim=str(ref),
            operation=kind,
            reason=refused.reason,
            error=refused.message,
            trace_id=trace,
        )
        return refused

    def _kind(self, ref: ClaimRef) -> str:
        """What the claim's devices are, while it is held."""
        holding = self._held.get(ref.uid)
        return "" if holding is None else holding.kind

    async def _prepare(
        self, ref: ClaimRef, deadline: float, links: tuple[Link, ...]
    ) -> PreparedClaim:
        self._attempts[ref.uid] += 1
        self._turns.want(ref.uid)  # asked for again after an unprepare that is still being answered
        started = self._clock.now()
        claim: ResourceClaim | None = None
        try:
            with self._operation(keys.PREPARE, ref, links) as span:
                span.set(keys.ATTEMPT, self._attempts[ref.uid])
                holding = await self._known(ref, deadline)
                if holding is not None:
                    span.set(keys.DEVICE_KIND, holding.kind)
                    prepared = await self._preparer.repeat(holding, deadline)
                else:
                    claim = await self._fetch(ref, deadline)
                    tell = partial(self._refusals.note, ref, keys.PREPARE, claim=claim)
                    prepared = await self._preparer.prepare(claim, deadline, tell)
                    span.set(keys.DEVICE_KIND, self._held[ref.uid].kind)
                    span.set(keys.DEVICES, tuple(device.device for device in prepared.devices))
        except Exception as error:  # noqa: BLE001 - a bug is told to the user as a refusal is
            self._roots.note(roots.attempt(ref, claim, started, self._clock.now(), error))
            raise self._refusals.note(ref, keys.PREPARE, error, claim) from error.__cause__
        # An attempt that the process's end cut off is no end of one: the next one tells.
        self._roots.note(roots.attempt(ref, claim, started, self._clock.now(), None))
        devices = ", ".join(device.device for device in prepared.devices)
        self._refusals.done(ref, keys.PREPARE, claim, f"{devices} on node {self._node}")
        return prepared

    async def _known(self, ref: ClaimRef, deadline: float) -> H | None:
        """What the claim holds; one without a record may be in the kubelet's."""
        holding = self._held.get(ref.uid)
        if holding is None and not self._rebuild.is_done:
            await self._rebuild.finish(deadline)
            holding = self._held.get(ref.uid)
        return holding

    async def _unprepare(self, ref: ClaimRef, deadline: float, links: tuple[Link, ...]) -> None:
        self._attempts.pop(ref.uid, None)
        holding = self._held.get(ref.uid)
        if holding is None:
            if ref.uid in self._held.unreadable:
                await self._held.release(ref.uid)
                LOG.info("A record that could not be read went with its claim", claim=str(ref))
            LOG.v(2, "Nothing to unprepare", claim=str(ref))
            return
        try:
            with self._operation(keys.UNPREPARE, ref, links) as span:
                span.set(keys.DEVICE_KIND, holding.kind)
                await self._preparer.unprepare(holding, deadline)
        except Exception as error:  # noqa: BLE001 - a bug is told to the user as a refusal is
            raise self._refusals.note(ref, keys.UNPREPARE, error) from error.__cause__
        devices = ", ".join(device.device for device in holding.devices)
        self._refusals.done(ref, keys.UNPREPARE, None, f"{devices} on node {self._node}")

    def _operation(self, name: str, ref: ClaimRef, links: tuple[Link, ...]) -> Scope:
        trace, parent = claim_parent(ref, self._node)
        return self._telemetry.operation(
            name, trace=trace, parent=parent, attributes=claim_attributes(ref), links=links
        )


def _limits(deadline: float) -> _Limits:
    """Two seconds are for the answer; of a call that has less than four, half of what it has."""
    left = max(0.0, deadline - asyncio.get_running_loop().time())
    margin = min(MARGIN_S, left / 2)
    return _Limits(work=deadline - margin, answer=deadline - margin / 2)


def _links(traceparent: str | None) -> tuple[Link, ...]:
    link = identity.inbound_link(traceparent)
    return () if link is None else (link,)
