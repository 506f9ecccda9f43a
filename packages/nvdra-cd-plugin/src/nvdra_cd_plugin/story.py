"""This node's part in the trace of a ComputeDomain; a claim's own trace points at it.

Trace and parents follow from UIDs and the node's name, so that controller, plugins and daemons
write one trace with nothing passed between them. Source: spec/tracing.md §§1, 2.
"""

from datetime import datetime

from nvdra_api.protocol import identity
from nvdra_api.protocol.identity import Link
from nvdra_api.runtime.node.store import Store
from nvdra_api.runtime.process.clock import Clock
from nvdra_api.runtime.telemetry.active import ActiveSpan, failure_of
from nvdra_api.runtime.telemetry.spans import Value
from nvdra_api.runtime.telemetry.traces import Telemetry, claim_attributes, domain_attributes
from nvdra_api.types import keys
from nvdra_api.types.claims import ClaimRef, ResourceClaim
from nvdra_api.types.ids import CliqueID, DomainUID, NodeName

from nvdra_cd_plugin.membership import Domain


class Story:
    """What happens on one node, told in the traces of domains."""

    def __init__(self, node: NodeName, telemetry: Telemetry, clock: Clock, store: Store) -> None:
        """Tell of `node`; `store` remembers which memberships are told."""
        self._node = node
        self._telemetry = telemetry
        self._clock = clock
        self._store = store

    def now(self) -> datetime:
        """The time of day."""
        return self._clock.now()

    def link(self, uid: DomainUID) -> Link:
        """From a claim's trace to this node's part in its domain's."""
        span = identity.member(uid, self._node)
        return Link(identity.trace_id(uid), span, keys.LINK_DOMAIN)

    def member(
        self,
        ref: ClaimRef,
        domain: Domain,
        clique: CliqueID,
        began: datetime,
        error: BaseException | None,
    ) -> None:
        """The node's membership: from its label to the end of the first attempt at a channel.

        Its span ID is known to everybody, and so there can be one only: it is written once as long
        as the node works for the domain, and for an hour after (`left`). A node that comes back
        later writes another.
        """
        if not self._store.root_written(domain.uid):
            self._write_member(ref, domain, clique, began, error)
        # Told before it is marked: a crash in between loses both, and the next attempt tells.
        self._store.mark_root(domain.uid)

    def left(self, uid: DomainUID) -> None:
        """A channel of the domain went: who comes back within the hour finds its member told."""
        self._store.mark_root(uid)

    def scheduled(
        self,
        claim: ResourceClaim,
        domain: Domain,
        clique: CliqueID,
        joined: datetime | None,
        called: datetime,
    ) -> None:
        """The daemon's way to this node: its claim made, scheduled, and brought by the kubelet.

        Args:
            claim: The daemon's; Kubernetes keeps the second in which it was made.
            domain: Whose daemon.
            clique: The node's.
            joined: When the node became a member; it is the earliest that this can have begun.
            called: When the kubelet's call came, the end of it.
        """
        created = claim.metadata.creation_timestamp or called
        start = created if joined is None else max(created, joined)
        self._write("schedule daemon", claim.ref, domain, clique, start, called)

    def part(
        self,
        name: str,
        ref: ClaimRef,
        domain: Domain,
        clique: CliqueID,
        began: datetime,
        error: BaseException | None = None,
        span: ActiveSpan | None = None,
    ) -> None:
        """Something of the membership that began then and is over now: `wait domain`, `prepare`.

        Args:
            name: What it was.
            ref: The claim it was done for.
            domain: Whose membership.
            clique: The node's.
            began: Its start.
            error: Why it failed.
            span: The same in the claim's trace; what was noted there is told here too.
        """
        self._write(name, ref, domain, clique, began, self._clock.now(), error, span)

    def _write_member(
        self,
        ref: ClaimRef,
        domain: Domain,
        clique: CliqueID,
        began: datetime,
        error: BaseException | None,
    ) -> None:
        self._telemetry.retroactive(
            "member",
            trace=identity.trace_id(domain.uid),
            id=identity.member(domain.uid, self._node),
            parent=identity.domain_root(domain.uid),
            start=began,
            end=self._clock.now(),
            attributes=self._attributes(domain, clique),
            links=(self._claim(ref),),
            failure=None if error is None else failure_of(error),
        )

    def _write(
        self,
        name: str,
        ref: ClaimRef,
        domain: Domain,
        clique: CliqueID,
        start: datetime,
        end: datetime,
        error: BaseException | None = None,
        span: ActiveSpan | None = None,
    ) -> None:
        noted = span.attributes if span is not None else {}
        self._telemetry.retroactive(
            name,
            trace=identity.trace_id(domain.uid),
            parent=identity.member(domain.uid, self._node),
            start=start,
            end=end,
            attributes={**noted, **claim_attributes(ref), **self._attributes(domain, clique)},
            events=span.events if span is not None else (),
            links=(self._claim(ref),),
            failure=None if error is None else failure_of(error),
            is_operation=True,
        )

    def _claim(self, ref: ClaimRef) -> Link:
        root = identity.claim_root(ref.uid, self._node)
        return Link(identity.trace_id(ref.uid), root, keys.LINK_CLAIM)

    def _attributes(self, domain: Domain, clique: CliqueID) -> dict[str, Value]:
        return {
            **domain_attributes(domain.namespace, domain.name, domain.uid),
            keys.CLIQUE: clique,
            keys.K8S_NODE_NAME: self._node,
        }
