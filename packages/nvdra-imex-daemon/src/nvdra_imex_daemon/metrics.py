"""The metrics of IMEX on this node, beside those that every component has.

Source: spec/tracing.md §5.
"""

from nvdra_api.types import keys
from prometheus_client import CollectorRegistry, Counter, Gauge


class ImexMetrics:
    """How often nvidia-imex had to be started again, and how many peers there are."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Beside what every component measures, in its registry."""
        self._restarts = Counter(
            keys.IMEX_RESTARTS,
            "Times that nvidia-imex was gone and is started again, by why: exit, signal, refused, "
            "replaced.",
            (keys.LABEL_REASON,),
            registry=registry,
        )
        self._peers = Gauge(
            keys.IMEX_PEERS,
            "Daemons of the clique, this one among them, by state: ready, not_ready.",
            (keys.LABEL_STATE,),
            registry=registry,
        )

    def restarted(self, reason: str) -> None:
        """The child is gone, or could not be started."""
        self._restarts.labels(reason).inc()

    def peers(self, ready: int, not_ready: int) -> None:
        """How many daemons the clique has."""
        self._peers.labels("ready").set(ready)
        self._peers.labels("not_ready").set(not_ready)
