"""What one member of a domain does, as spans of the domain's trace.

Trace and parent follow from the domain's UID and the node's name, so that controller, plugins and
daemons write one trace with nothing passed between them. Source: spec/tracing.md §§1, 2.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from nvdra_api.protocol import identity
from nvdra_api.runtime.process.clock import Clock
from nvdra_api.runtime.telemetry.active import failure_of
from nvdra_api.runtime.telemetry.process_metrics import ProcessMetrics
from nvdra_api.runtime.telemetry.spans import Value
from nvdra_api.runtime.telemetry.traces import Scope, Telemetry, domain_attributes
from nvdra_api.types import keys
from nvdra_api.types.ids import CliqueID, DomainUID, NodeName, TraceID


class Domain(NamedTuple):
    """The ComputeDomain that all this is about."""

    namespace: str
    name: str
    uid: DomainUID


class Story:
    """The spans of this daemon, below the span of its node's membership.

    Attributes:
        trace: The domain's, for Events.
    """

    def __init__(
        self,
        telemetry: Telemetry[ProcessMetrics],
        clock: Clock,
        domain: Domain,
        clique: CliqueID,
        node: NodeName,
    ) -> None:
        self.trace: TraceID = identity.trace_id(domain.uid)
        self._parent = identity.member(domain.uid, node)
        self._telemetry = telemetry
        self._clock = clock
        self._attributes: dict[str, Value] = {
            **domain_attributes(domain.namespace, domain.name, domain.uid),
            keys.CLIQUE: clique,
            keys.K8S_NODE_NAME: node,
        }

    def operation(self, name: str) -> Scope:
        """Something that happens now: `with story.operation("start imex") as span:`."""
        return self._telemetry.operation(
            name, trace=self.trace, parent=self._parent, attributes=self._attributes
        )

    def over(
        self,
        name: str,
        start: datetime,
        error: BaseException | None = None,
        attributes: Mapping[str, Value] | None = None,
    ) -> None:
        """Something that began then and is over now."""
        self._telemetry.retroactive(
            name,
            trace=self.trace,
            parent=self._parent,
            start=start,
            end=self._clock.now(),
            attributes={**self._attributes, **(attributes or {})},
            failure=None if error is None else failure_of(error),
            is_operation=True,
        )
