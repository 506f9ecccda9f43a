"""The slices of a plugin's node: kept true, counted, told of on the Node where they cannot be."""

from functools import partial

from nvdra_api.runtime.kube.events import node_subject
from nvdra_api.runtime.kube.publisher import Publisher, Write
from nvdra_api.runtime.plugin.foundation import Foundation
from nvdra_api.runtime.telemetry.metrics import Metrics
from nvdra_api.types.errors import DriverError


def publisher(base: Foundation) -> Publisher:
    """The node's publisher; a reason that time does not mend is told on the Node."""

    def warn(error: DriverError) -> None:
        text = f"the node's {base.program.devices} are not published: {error.advice}"
        base.events.emit((node_subject(base.node),), "Warning", error.reason, text)

    return Publisher(
        base.api,
        base.driver,
        base.node,
        partial(_count, base.metrics),
        base.metrics.watch_restart,
        warn,
    )


def _count(metrics: Metrics, write: Write) -> None:
    metrics.slice_write(write.verb, write.outcome)
