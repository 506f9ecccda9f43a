"""A component's two ports: the pod's, for all, and the loopback's, for who may see everything.

Source: design.md, "Settled" (ports).
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from nvdra_api.runtime.http import debug, exposition, listener, probes
from nvdra_api.runtime.process.clock import Clock
from nvdra_api.runtime.telemetry.logs import Logging
from nvdra_api.runtime.telemetry.recorder import Recorder


@asynccontextmanager
async def public(
    endpoint: str,
    ready: Mapping[str, probes.Check],
    registry: CollectorRegistry,
    metrics_path: str,
) -> AsyncIterator[None]:
    """Probes and metrics, nothing that names an object of anybody's.

    Args:
        endpoint: `host:port`; empty serves nothing.
        ready: What `/readyz` asks.
        registry: What is shown at `metrics_path`.
        metrics_path: Empty shows no metrics.
    """
    if not endpoint:
        yield
        return
    routes = [*probes.routes(alive={}, ready=ready)]
    if metrics_path:
        routes.append(exposition.route(registry, metrics_path))
    async with listener.listening(endpoint, routes):
        yield


@asynccontextmanager
async def private(
    endpoint: str, recorder: Recorder, logging: Logging, clock: Clock, status: debug.Status
) -> AsyncIterator[None]:
    """The debug pages; `endpoint` is on the loopback, and empty serves nothing."""
    if not endpoint:
        yield
        return
    async with listener.listening(endpoint, debug.routes(recorder, logging, clock, status)):
        yield
