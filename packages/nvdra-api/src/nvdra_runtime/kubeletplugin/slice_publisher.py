"""Creates the publisher of a plugin's ResourceSlices, with metrics and Events."""

from collections.abc import Callable
from functools import partial

from nvdra_api.errors import DriverError

from nvdra_runtime.kube.event_recorder import node_reference
from nvdra_runtime.kubeletplugin.plugin_context import PluginContext
from nvdra_runtime.resourceslices.publisher import Publisher, Write
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics


def create_publisher(
    context: PluginContext, observe_dropped: Callable[[tuple[str, ...]], None] | None = None
) -> Publisher:
    """The node's publisher.

    Problems that do not disappear by themselves are reported on the Node.

    Args:
        context: The shared parts of the plugin.
        observe_dropped: As a `Publisher`'s: called when the API server drops fields.
    """

    def warn(error: DriverError) -> None:
        text = f"the node's {context.program.devices} are not published: {error.event_text}"
        context.events.emit((node_reference(context.node),), "Warning", error.reason, text)

    return Publisher(
        context.api,
        context.driver,
        context.node,
        partial(_count, context.metrics),
        context.metrics.watch_restart,
        warn,
        observe_dropped or _ignore,
    )


def _ignore(_: tuple[str, ...]) -> None:
    pass


def _count(metrics: PluginMetrics, write: Write) -> None:
    metrics.slice_write(write.verb, write.outcome)
