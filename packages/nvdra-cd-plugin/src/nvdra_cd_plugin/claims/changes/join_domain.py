# SPDX-License-Identifier: Apache-2.0
"""Makes the node a member of the domain of a channel's claim, whose daemons this driver runs.

The claim is recorded before the node is labelled: whatever happens after that, its unprepare
removes the label. The label starts the domain's daemon on this node, and the claim gets its
channels as soon as that daemon is ready.

Source: docs/reference/compute-domain.md, "Prepare and unprepare", "Channel claim".
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from nvdra_api.errors import DriverError, Reason, RetryableError
from nvdra_api.ids import ClaimUID, CliqueID
from nvdra_runtime.claims.changes import Keep, LateKind
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue, NotifyWaiting
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.instrumentation import Telemetry

from nvdra_cd_plugin.daemon.readiness_watch import ReadinessWatch
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord, JoinDomain
from nvdra_cd_plugin.domains.domain import Domain
from nvdra_cd_plugin.fabric.monitor import FabricMonitor
from nvdra_cd_plugin.membership.domain_spans import DomainSpans
from nvdra_cd_plugin.membership.node_membership import NodeMembership


@dataclass(slots=True)
class _Call:
    """A call of the kubelet for a claim.

    Attributes:
        domain: The claim's domain.
        deadline: Monotonic seconds; every request and every wait ends by then.
        notify: Called once if the wait takes long.
        clique: The node's clique, as soon as its daemon is ready.
    """

    domain: Domain
    deadline: float
    notify: NotifyWaiting | None = None
    clique: CliqueID | None = None


class JoinDomainKind(LateKind[DomainClaimRecord, JoinDomain]):
    """Labels the node, waits for its daemon, and removes the label with the last channel."""

    needs_start: ClassVar[bool] = False

    def __init__(
        self,
        prepared_claims: PreparedClaims[DomainClaimRecord],
        membership: NodeMembership,
        fabric: FabricMonitor,
        readiness: ReadinessWatch,
        waits: DeviceWaitQueue,
        spans: DomainSpans,
        telemetry: Telemetry,
    ) -> None:
        self._prepared_claims = prepared_claims
        self._membership = membership
        self._fabric = fabric
        self._readiness = readiness
        self._waits = waits
        self._spans = spans
        self._telemetry = telemetry
        self._calls: dict[ClaimUID, _Call] = {}

    @contextmanager
    def attempt(
        self,
        claim: DomainClaimRecord,
        domain: Domain,
        deadline: float,
        notify: NotifyWaiting | None = None,
    ) -> Iterator[None]:
        """Make one attempt at the channel of a recorded claim; the domain's trace shows it.

        A node that is labelled for another domain has no part in this one: nothing is reported.
        """
        joined_at = self._spans.now()
        if claim.is_joining:
            joined_at = self._prepared_claims.prepared_at(claim.uid)
        with self._spans.operation("prepare", claim, joined_at) as shown:
            self._calls[claim.uid] = _Call(domain, deadline, notify)
            try:
                yield
            finally:
                del self._calls[claim.uid]
                stored = self._prepared_claims.get(claim.uid)
                shown.is_left_out = stored is None
                shown.clique = claim.clique if stored is None else stored.clique

    @contextmanager
    def leaving(self, claim: DomainClaimRecord, deadline: float) -> Iterator[None]:
        """Let `end` try until the deadline, in monotonic seconds."""
        self._calls[claim.uid] = _Call(claim.to_domain(), deadline)
        try:
            yield
        finally:
            del self._calls[claim.uid]

    async def apply(
        self, claim: DomainClaimRecord, change: JoinDomain, keep: Keep[JoinDomain]
    ) -> JoinDomain:
        """Label the node, which starts the domain's daemon here; later, say what was waited for.

        Raises:
            RetryableError: `NodeInOtherDomain`: the record of a claim that was never given its
                channel is removed; for one that was, `label_watch` corrects the label.
                `ApiUnavailable`.
        """
        call = self._calls[claim.uid]
        if call.clique is None:
            await self._label_node(claim, call)
            return change
        all_channels = call.domain.allows_all_channels
        return change.model_copy(
            update={"clique": call.clique, "allows_all_channels": all_channels}
        )

    async def is_in_force(self, claim: DomainClaimRecord, change: JoinDomain) -> bool:
        """Whether the daemon was ready in this boot. A claim with channels needs no API server."""
        return change.clique is not None

    def pending(self, claim: DomainClaimRecord) -> RetryableError:
        """`DaemonNotReady`."""
        return RetryableError(
            Reason.DAEMON_NOT_READY,
            f"the IMEX daemon of ComputeDomain {claim.to_domain()} has just been asked for",
            "the claim waits for it",
            claim=str(claim.ref),
        )

    async def wait_in_force(self, claim: DomainClaimRecord, deadline: float) -> None:
        """Wait for this node's daemon.

        Raises:
            DriverError: `DaemonNotReady`, `FabricError` and others; the claim stays recorded,
                because the node stays labelled for it.
        """
        call = self._calls[claim.uid]
        clique = await self._fabric.wait_clique_for_claim(claim.ref, self._waits, deadline)
        attributes = {keys.DOMAIN_UID: call.domain.uid, keys.CLIQUE: clique}
        with (
            self._spans.operation("wait domain", claim) as shown,
            self._telemetry.step("wait domain", attributes) as span,
        ):
            shown.clique, shown.span = clique, span
            span.add_link(self._spans.link(claim))
            await self._readiness.wait_ready(
                claim.ref, call.domain, clique, deadline, span, call.notify
            )
        call.clique = clique

    async def end(self, claim: DomainClaimRecord) -> None:
        """Remove the node's label with the domain's last channel.

        Raises:
            RetryableError: `ApiUnavailable`.
        """
        with self._telemetry.step("unlabel node", {keys.DOMAIN_UID: claim.domain}):
            await self._membership.leave(claim, self._calls[claim.uid].deadline)
        if claim.domain:  # it was not gone already when its record was made
            self._spans.emit_left(claim, self._prepared_claims.prepared_at(claim.uid))

    async def _label_node(self, claim: DomainClaimRecord, call: _Call) -> None:
        with self._spans.operation("label node", claim) as shown:
            try:
                with self._telemetry.step("label node", {keys.DOMAIN_UID: claim.domain}):
                    shown.is_left_out = not await self._membership.join(claim, call.deadline)
            except DriverError as error:
                if error.reason is Reason.NODE_IN_OTHER_DOMAIN:
                    shown.is_left_out = True
                    if claim.is_joining:
                        await self._prepared_claims.remove(claim.uid)
                    self._membership.forget(claim.uid)
                raise
