"""This node's part in the trace of a ComputeDomain; a claim's own trace points at it.

Trace and parents follow from UIDs and the node's name, so that controller, plugins and daemons
write one trace with nothing passed between them. Source: spec/tracing.md §§1, 2.
"""

from datetime import datetime

from nvdra_api.protocol import identity
from nvdra_api.protocol.identity import Link
from nvdra_api.runtime.process.clock import Clock
from nvdra_api.runtime.telemetry.active import failure_of
from nvdra_api.runtime.telemetry.spans import Value
from nvdra_api.runtime.telemetry.traces import Telemetry, claim_attributes, domain_attributes
from nvdra_api.types import keys
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.ids import CliqueID, DomainUID, NodeName

from nvdra_cd_plugin.membership import Domain


class Story:
    """What happens on one node, told in the traces of domains."""

    def __init__(self, node: NodeName, telemetry: Telemetry, clock: Clock) -> None:
        self._node = node
        self._telemetry = telemetry
        self._clock = clock

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
        """The node's membership: from its label to the end of the first attempt at a channel."""
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

    def part(
        self,
        name: str,
        ref: ClaimRef,
        domain: Domain,
        clique: CliqueID,
        began: datetime,
        error: BaseException | None = None,
    ) -> None:
        """Something of the membership that began then and is over now: `wait domain`, `prepare`."""
        self._telemetry.retroactive(
            name,
            trace=identity.trace_id(domain.uid),
            parent=identity.member(domain.uid, self._node),
            start=began,
            end=self._clock.now(),
            attributes={**claim_attributes(ref), **self._attributes(domain, clique)},
            links=(self._claim(ref),),
            failure=None if error is None else failure_of(error),
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
