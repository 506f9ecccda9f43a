"""The slices of a plugin's node: kept true, counted, told of on the Node where they cannot be."""

from functools import partial

from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.events import Events, node_subject
from nvdra_api.runtime.kube.publisher import Publisher, Write
from nvdra_api.runtime.telemetry.metrics import Metrics
from nvdra_api.types.errors import DriverError
from nvdra_api.types.ids import NodeName


def publisher(
    api: Client, driver: str, devices: str, node: NodeName, metrics: Metrics, events: Events
) -> Publisher:
    """The node's publisher.

    Args:
        api: The API server.
        driver: Whose slices.
        devices: What people call its devices: GPUs.
        node: Whose devices.
        metrics: Where writes and watches are counted.
        events: Where people are told of a reason that time does not mend.
    """

    def warn(error: DriverError) -> None:
        text = f"the node's {devices} are not published: {error.advice}"
        events.emit((node_subject(node),), "Warning", error.reason, text)

    return Publisher(api, driver, node, partial(_count, metrics), metrics.watch_restart, warn)


def _count(metrics: Metrics, write: Write) -> None:
    metrics.slice_write(write.verb, write.outcome)
