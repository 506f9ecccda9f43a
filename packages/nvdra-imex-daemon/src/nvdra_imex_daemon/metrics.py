# SPDX-License-Identifier: Apache-2.0
"""The metrics of IMEX on this node, in addition to those of every component.

Source: docs/reference/tracing.md, "Metrics".
"""

from nvdra_runtime.telemetry import keys
from prometheus_client import CollectorRegistry, Counter, Gauge


class ImexMetrics:
    """How often nvidia-imex was restarted, and how many peers it has."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the metrics in the component's registry."""
        self._restarts = Counter(
            keys.IMEX_RESTARTS,
            "Restarts of nvidia-imex by reason: exit, signal, refused (it could not be started), "
            "hung (it gave no answer for minutes and was ended), replaced.",
            (keys.LABEL_REASON,),
            registry=registry,
        )
        self._peers = Gauge(
            keys.IMEX_PEERS,
            "Daemons of the clique, including this one, by state: ready, not_ready.",
            (keys.LABEL_STATE,),
            registry=registry,
        )

    def count_restart(self, reason: str) -> None:
        """Count an end of the child, or a failed start."""
        self._restarts.labels(reason).inc()

    def set_peers(self, ready: int, not_ready: int) -> None:
        """Set the number of daemons in the clique."""
        self._peers.labels("ready").set(ready)
        self._peers.labels("not_ready").set(not_ready)
