# SPDX-License-Identifier: Apache-2.0
"""The two HTTP servers of a component: a public one on the pod's address, a debug one on loopback.

Source: docs/design.md, "Settled" (ports).
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType

from prometheus_client import CollectorRegistry

from nvdra_runtime.http import debug_endpoint, listener, metrics_endpoint, probes
from nvdra_runtime.http.connections import OnDropped
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.telemetry.logs import ConfiguredLogging
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder


@asynccontextmanager
async def serve_public(
    endpoint: str,
    ready: Mapping[str, probes.Check],
    registry: CollectorRegistry,
    metrics_path: str,
    on_dropped: OnDropped,
) -> AsyncIterator[None]:
    """Serve probes and metrics. Neither names any object.

    Args:
        endpoint: `host:port`; empty disables the server.
        ready: The checks of `/readyz`.
        registry: The metrics.
        metrics_path: Path of the metrics; empty disables them.
        on_dropped: Called for each connection that is closed too early for its client.
    """
    if not endpoint:
        yield
        return
    routes = [*probes.routes(alive={}, ready=ready)]
    if metrics_path:
        routes.append(metrics_endpoint.route(registry, metrics_path))
    async with listener.listen(endpoint, routes, name="http", on_dropped=on_dropped):
        yield


@asynccontextmanager
async def serve_debug(
    endpoint: str,
    recorder: TraceRecorder,
    logging: ConfiguredLogging,
    clock: Clock,
    status: debug_endpoint.StatusSource,
    on_dropped: OnDropped,
    actions: Mapping[str, debug_endpoint.Action] = MappingProxyType({}),
) -> AsyncIterator[None]:
    """Serve the debug pages. `endpoint` is on the loopback; empty disables the server."""
    if not endpoint:
        yield
        return
    routes = debug_endpoint.routes(recorder, logging, clock, status, actions)
    async with listener.listen(
        endpoint,
        routes,
        name="debug",
        on_dropped=on_dropped,
        middlewares=[debug_endpoint.refuse_other_hosts(listener.parse_address(endpoint)[0])],
    ):
        yield
