# SPDX-License-Identifier: Apache-2.0
"""The controller's start: creates its parts in order and stops them in the opposite order."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from nvdra_api.errors import DriverError
from nvdra_api.ids import DomainUID, NodeName
from nvdra_runtime.http import servers
from nvdra_runtime.kube import client as kube
from nvdra_runtime.kube import leader_election, request_observer
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.connection import KubeSettings
from nvdra_runtime.kube.event_recorder import EventRecorder
from nvdra_runtime.kube.leader_election import LeaderElectionSettings, LeaderElector
from nvdra_runtime.kube.workqueue import WorkQueue
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.clock import SystemClock
from nvdra_runtime.settings import loader as process_settings
from nvdra_runtime.telemetry import instrumentation, logs
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.logs import ConfiguredLogging
from nvdra_runtime.telemetry.metrics.process_metrics import ProcessMetrics

from nvdra_cd_controller.__about__ import __version__
from nvdra_cd_controller.children import ChildConfig
from nvdra_cd_controller.crds.keeper import CrdKeeper
from nvdra_cd_controller.informers import DomainInformers
from nvdra_cd_controller.metrics import DomainMetrics
from nvdra_cd_controller.reconciler import Reconciler
from nvdra_cd_controller.settings import Settings
from nvdra_cd_controller.status_report import StatusReport

PROGRAM = "nvdra-cd-controller"

LOG = logs.logger(__name__)

DAEMON_OTEL_VARIABLES: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_METRICS_EXPORTER",
    "OTEL_SDK_DISABLED",
    "OTEL_TRACES_EXPORTER",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
)
"""OpenTelemetry variables that daemons get as well; not those of headers, which may be secret."""

MIN_RECONCILE_INTERVAL_S: Final = 0.1
"""Between two reconciliations of one domain, so that reports of several daemons make one status."""

_RESYNC_S: Final = 600.0
_RESYNC_JITTER_S: Final = 60.0
"""Every domain is reconciled this often from the informers' caches, even if nothing changes."""


@dataclass(frozen=True, slots=True)
class _Process:
    """What every part of the controller uses."""

    clock: SystemClock
    metrics: DomainMetrics
    telemetry: Telemetry[ProcessMetrics]
    api: Client
    events: EventRecorder


@dataclass(frozen=True, slots=True)
class _Controller:
    """What runs while this process holds the lease."""

    crds: CrdKeeper
    informers: DomainInformers
    queue: WorkQueue[DomainUID]


async def main(settings: Settings, logging: ConfiguredLogging, stop: asyncio.Event) -> None:
    """Serve ComputeDomains until `stop` is set or the lease is lost.

    The children of domains stay when the controller stops: daemons and workloads keep running.
    """
    LOG.info("Starting", version=__version__, **process_settings.as_flags(settings))
    async with _connected(settings) as process:
        lease = _lease(settings, process)
        controller = _controller(settings, process)
        async with (
            _serving(settings, logging, process, controller, lease),
            _hold_lease(lease, stop) as is_over,
        ):
            async with controller.crds.running(), controller.informers.running():
                if await _wait_synced(controller.informers, is_over):
                    async with controller.queue.running(), _resync_periodically(controller):
                        await is_over.wait()
                        if lease is not None and lease.lost.is_set():
                            # Another controller may already be the leader.
                            controller.queue.skip_drain()
            LOG.info("Stopping; the children of all ComputeDomains stay in place")


@asynccontextmanager
async def _connected(settings: Settings) -> AsyncIterator[_Process]:
    """Telemetry, the API server, and the Events sent to it."""
    clock, metrics, node = SystemClock(), DomainMetrics(), NodeName(settings.node_name)
    async with (
        instrumentation.for_process(
            PROGRAM, __version__, node, settings.pod_uid, clock=clock, metrics=metrics.process
        ) as telemetry,
        kube.connect(
            KubeSettings.from_flags(settings, PROGRAM, __version__),
            request_observer.count_and_log(metrics.process),
        ) as api,
        EventRecorder(api, PROGRAM, node, clock.now).running() as events,
    ):
        yield _Process(clock, metrics, telemetry, api, events)


def _controller(settings: Settings, process: _Process) -> _Controller:
    """The definitions, the informers, and the queue that reconciles what they enqueue."""
    api, events = process.api, process.events
    queue = WorkQueue[DomainUID](
        lambda uid: reconciler.reconcile(uid),  # created below: it needs the informers
        on_failure=_log_failure,
        group_of=lambda uid: informers.namespace_of(uid),
        min_interval_s=MIN_RECONCILE_INTERVAL_S,
    )
    informers = DomainInformers(
        api,
        settings.managed_namespaces,
        queue.add,
        process.metrics.process.watch_restart,
        is_host_managed=settings.is_host_managed,
    )
    config = child_config(settings)
    reconciler = Reconciler(
        api, informers, config, events, process.telemetry, process.metrics, process.clock
    )
    return _Controller(CrdKeeper(api, events, settings.crds), informers, queue)


@asynccontextmanager
async def _serving(
    settings: Settings,
    logging: ConfiguredLogging,
    process: _Process,
    controller: _Controller,
    lease: LeaderElector | None,
) -> AsyncIterator[None]:
    """The HTTP servers, which answer before the lease is held."""
    metrics, telemetry, dropped = (
        process.metrics,
        process.telemetry,
        process.metrics.process.connection_dropped,
    )
    report = StatusReport(
        controller.informers, controller.queue, lease, controller.crds, telemetry.task_failures
    )
    metrics.register_gauges(report.domain_statuses, report.queue_counts)
    async with (
        servers.serve_public(
            settings.http_endpoint,
            report.checks(),
            metrics.registry,
            settings.metrics_path,
            dropped,
        ),
        servers.serve_debug(
            settings.debug_endpoint,
            telemetry.recorder,
            logging,
            process.clock,
            report.document,
            dropped,
        ),
    ):
        yield


@asynccontextmanager
async def _hold_lease(
    lease: LeaderElector | None, stop: asyncio.Event
) -> AsyncIterator[asyncio.Event]:
    """Acquire the lease, then yield an event that is set once the controller must stop.

    The event is set when `stop` is set or the lease is lost. It is already set if `stop` came
    before the lease was acquired. The lease is released when the block ends.
    """
    if lease is None or not await lease.acquire(stop):
        yield stop
        return
    is_over = asyncio.Event()
    async with (
        leader_election.hold(lease),
        background_tasks.running(
            end_of_process=partial(_set_after, stop.wait, is_over),
            end_of_lease=partial(_set_after, lease.lost.wait, is_over),
        ),
    ):
        yield is_over


async def _wait_synced(informers: DomainInformers, is_over: asyncio.Event) -> bool:
    """Wait until the informers have synced. Returns False if the controller must stop first."""
    is_decided = asyncio.Event()
    async with background_tasks.running(
        sync=partial(_set_after, informers.wait_synced, is_decided),
        end_of_sync=partial(_set_after, is_over.wait, is_decided),
    ):
        await is_decided.wait()
    return not is_over.is_set()


async def _set_after(wait: Callable[[], Awaitable[object]], event: asyncio.Event) -> None:
    await wait()
    event.set()


@asynccontextmanager
async def _resync_periodically(controller: _Controller) -> AsyncIterator[None]:
    async def resync() -> None:
        while True:
            jitter_s = random.random() * _RESYNC_JITTER_S  # noqa: S311 - spreads load
            await asyncio.sleep(_RESYNC_S + jitter_s)
            for uid in controller.informers.domain_uids():
                controller.queue.add(uid)

    async with background_tasks.running(resync=resync):
        yield


def _lease(settings: Settings, process: _Process) -> LeaderElector | None:
    if not settings.leader_election_enabled:
        return None
    election = LeaderElectionSettings(
        settings.leader_election_lease_lock_namespace,
        settings.leader_election_lease_lock_name,
        settings.leader_election_lease_duration,
        settings.leader_election_renew_deadline,
        settings.leader_election_retry_period,
    )
    return LeaderElector(
        process.api, election, settings.pod_name, process.clock.now, settings.pod_uid
    )


def child_config(settings: Settings) -> ChildConfig:
    """What the settings say about the children of all domains."""
    variables = process_settings.environment_variables("OTEL_")
    return ChildConfig(
        namespace=settings.namespace,
        image=settings.image_name,
        pull_policy=settings.cd_daemon_image_pull_policy,
        pull_secrets=settings.pull_secrets,
        priority_class=settings.cd_daemon_priority_class_name,
        resources=settings.cd_daemon_resources,
        verbosity=settings.log_verbosity_cd_daemon,
        logging_format=settings.logging_format,
        max_nodes=settings.max_nodes_per_imex_domain,
        gates=settings.feature_gates,
        http_endpoint=settings.cd_daemon_http_endpoint,
        variables={name: variables[name] for name in DAEMON_OTEL_VARIABLES if name in variables},
        is_host_managed=settings.is_host_managed,
        network_rules=settings.cd_daemon_network_policy,
    )


def _log_failure(uid: DomainUID, error: DriverError, retry_s: float) -> None:
    LOG.v(4, "Retrying a domain", uid=uid, retry_s=round(retry_s, 2), error=str(error))
