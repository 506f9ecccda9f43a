# SPDX-License-Identifier: Apache-2.0
"""Creates the publisher of a plugin's ResourceSlices, with metrics and Events."""

from collections.abc import Callable
from functools import partial

from nvdra_api.errors import DriverError

from nvdra_runtime.kube.event_recorder import node_reference
from nvdra_runtime.kubeletplugin.plugin_context import PluginContext
from nvdra_runtime.resourceslices.publisher import Publisher, Write
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics


def create_publisher(
    context: PluginContext,
    observe_dropped: Callable[[tuple[str, ...]], None] | None = None,
    observe_restart: Callable[[], None] | None = None,
) -> Publisher:
    """The node's publisher.

    Problems that do not disappear by themselves are reported on the Node.

    Args:
        context: The shared parts of the plugin.
        observe_dropped: As a `Publisher`'s: called when the API server drops fields.
        observe_restart: Called when the watch of the slices begins again: every few minutes, and
            when the API server was started again, perhaps as another release.
    """

    def warn(error: DriverError) -> None:
        text = f"the node's {context.program.devices} are not published: {error.event_text}"
        context.events.emit((node_reference(context.node),), "Warning", error.reason, text)

    def note_restart(resource: str) -> None:
        context.metrics.watch_restart(resource)
        if observe_restart is not None:
            observe_restart()

    return Publisher(
        context.api,
        context.driver,
        context.node,
        partial(_count, context.metrics),
        note_restart,
        warn,
        observe_dropped or _ignore,
    )


def _ignore(_: tuple[str, ...]) -> None:
    pass


def _count(metrics: PluginMetrics, write: Write) -> None:
    metrics.slice_write(write.verb, write.outcome)
