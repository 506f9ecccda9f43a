"""The wiring: what the controller is made of, in the order of its start."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from nvdra_api.runtime.http import ports
from nvdra_api.runtime.kube import client as kube
from nvdra_api.runtime.kube import leases, observation
from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.connection import KubeSettings
from nvdra_api.runtime.kube.events import Events
from nvdra_api.runtime.kube.leases import Lease, LeaseSettings
from nvdra_api.runtime.kube.workqueue import WorkQueue
from nvdra_api.runtime.process import background
from nvdra_api.runtime.process import settings as process_settings
from nvdra_api.runtime.process.clock import SystemClock
from nvdra_api.runtime.telemetry import logs, traces
from nvdra_api.runtime.telemetry.logs import Logging
from nvdra_api.types.errors import DriverError
from nvdra_api.types.ids import DomainUID, NodeName

from nvdra_cd_controller.__about__ import __version__
from nvdra_cd_controller.children import Making
from nvdra_cd_controller.cluster import Cluster
from nvdra_cd_controller.metrics import DomainMetrics
from nvdra_cd_controller.reconcile import Reconciler
from nvdra_cd_controller.report import Report
from nvdra_cd_controller.settings import Settings
from nvdra_cd_controller.writes import Writes

PROGRAM = "nvdra-cd-controller"

LOG = logs.logger(__name__)

HANDED_ON: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_METRICS_EXPORTER",
    "OTEL_TRACES_SAMPLER_ARG",
)
"""What the daemons are told of telemetry; headers may be secret, and stay here."""

CALM_S: Final = 0.1
"""Between two looks at one domain: what its daemons say together is one status."""

_RESYNC_S: Final = 600.0
_RESYNC_SPREAD_S: Final = 60.0
"""A second look at everything, from memory: only what turns out to be wrong is written."""


async def main(settings: Settings, logging: Logging, stop: asyncio.Event) -> None:
    """Serve ComputeDomains until `stop` is set or the lease is lost.

    What was made for domains stays when it ends: daemons and workloads run on.
    """
    LOG.info("Starting", version=__version__, **process_settings.as_flags(settings))
    clock, metrics = SystemClock(), DomainMetrics()
    node = NodeName(settings.node_name)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        telemetry = await enter(
            traces.of_process(
                PROGRAM, __version__, node, settings.pod_uid, clock=clock, metrics=metrics
            )
        )
        api = await enter(
            kube.connected(
                KubeSettings.of(settings, PROGRAM, __version__),
                observation.counted(metrics.process),
            )
        )
        events = await enter(Events(api, PROGRAM, node, clock.now).running())
        lease = _lease(settings, api, clock)
        queue = WorkQueue[DomainUID](
            lambda uid: reconciler.reconcile(uid), observe_failure=_note_failure, calm_s=CALM_S
        )
        cluster = Cluster(
            api,
            settings.managed_namespaces,
            queue.add,
            metrics.process.watch_restart,
            is_host_managed=settings.is_host_managed,
        )
        reconciler = Reconciler(
            cluster, Writes(api, cluster), _making(settings), events, telemetry, clock
        )
        report = Report(cluster, queue, lease)
        metrics.watch(report.statuses, report.queue)
        await enter(
            ports.public(
                settings.http_endpoint, report.checks(), metrics.registry, settings.metrics_path
            )
        )
        await enter(
            ports.private(
                settings.debug_endpoint, telemetry.recorder, logging, clock, report.document
            )
        )
        async with _leading(lease, stop) as is_over:
            async with cluster.watched():
                if await _synced(cluster, is_over):
                    async with queue.running(), _resyncing(cluster, queue):
                        await is_over.wait()
                        if lease is not None and lease.lost.is_set():
                            queue.drop()  # another controller may be at the same domains by now
            LOG.info("Stopping; what was made for domains stays")


@asynccontextmanager
async def _leading(lease: Lease | None, stop: asyncio.Event) -> AsyncIterator[asyncio.Event]:
    """Wait for our turn; in the block it is ours, until the event that it gives is set.

    The event is set from the start where `stop` came first. Leaving the block gives the lease back.
    """
    if lease is None or not await lease.acquired(stop):
        yield stop
        return
    over = asyncio.Event()

    async def either(event: asyncio.Event) -> None:
        await event.wait()
        over.set()

    async with leases.kept(lease), asyncio.TaskGroup() as group:
        watchers = [group.create_task(either(event)) for event in (stop, lease.lost)]
        try:
            yield over
        finally:
            for watcher in watchers:
                watcher.cancel()


async def _synced(cluster: Cluster, over: asyncio.Event) -> bool:
    """Wait until everything has been listed; False when it is over before that."""
    async with asyncio.TaskGroup() as group:
        first = {group.create_task(cluster.synced()), group.create_task(over.wait())}
        _, rest = await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
    return not over.is_set()


@asynccontextmanager
async def _resyncing(cluster: Cluster, queue: WorkQueue[DomainUID]) -> AsyncIterator[None]:
    async def resync() -> None:
        while True:
            spread = random.random() * _RESYNC_SPREAD_S  # noqa: S311 - spreads load
            await asyncio.sleep(_RESYNC_S + spread)
            for uid in cluster.uids():
                queue.add(uid)

    async with background.tasks(resync=resync()):
        yield


def _lease(settings: Settings, api: Client, clock: SystemClock) -> Lease | None:
    if not settings.leader_election_enabled:
        return None
    lease = LeaseSettings(
        settings.leader_election_lease_lock_namespace,
        settings.leader_election_lease_lock_name,
        settings.leader_election_lease_duration,
        settings.leader_election_renew_deadline,
        settings.leader_election_retry_period,
    )
    return Lease(api, lease, settings.pod_name, clock.now)


def _making(settings: Settings) -> Making:
    variables = process_settings.variables("OTEL_")
    return Making(
        namespace=settings.namespace,
        image=settings.image_name,
        pull_policy=settings.cd_daemon_image_pull_policy,
        pull_secrets=settings.pull_secrets,
        priority_class=settings.cd_daemon_priority_class_name,
        resources=settings.cd_daemon_resources,
        verbosity=settings.log_verbosity_cd_daemon,
        max_nodes=settings.max_nodes_per_imex_domain,
        gates=settings.feature_gates,
        http_endpoint=settings.cd_daemon_http_endpoint,
        variables={name: variables[name] for name in HANDED_ON if name in variables},
        is_host_managed=settings.is_host_managed,
    )


def _note_failure(uid: DomainUID, error: DriverError, retry_s: float) -> None:
    LOG.v(4, "A domain is looked at again", uid=uid, retry_s=round(retry_s, 2), error=str(error))
