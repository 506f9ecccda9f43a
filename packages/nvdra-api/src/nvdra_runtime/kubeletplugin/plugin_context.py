# SPDX-License-Identifier: Apache-2.0
"""Resources shared by all kubelet plugins: directory, API server, telemetry, Events."""

import os
from asyncio import Event
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import NodeName

from nvdra_runtime.claims.kubelet_checkpoint import KubeletCheckpoint
from nvdra_runtime.http.probes import Check
from nvdra_runtime.kube import client as kube
from nvdra_runtime.kube import request_observer
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.connection import KubeSettings
from nvdra_runtime.kube.event_recorder import EventRecorder
from nvdra_runtime.kubeletplugin import registration, state_dir, status_report
from nvdra_runtime.kubeletplugin.health_service import HealthService
from nvdra_runtime.kubeletplugin.http_pages import HttpPages
from nvdra_runtime.kubeletplugin.settings import PluginSettings
from nvdra_runtime.kubeletplugin.standby import Standby, WarmUp
from nvdra_runtime.kubeletplugin.state_dir import StateDir
from nvdra_runtime.kubeletplugin.status_report import Document, Instance
from nvdra_runtime.node import instance_lock
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.nvml import CallObserver
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.process.background_tasks import BackgroundTasks
from nvdra_runtime.process.clock import Clock, SystemClock
from nvdra_runtime.process.worker import Worker, WorkerGroup
from nvdra_runtime.telemetry import instrumentation
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.logs import ConfiguredLogging
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics


@dataclass(frozen=True, slots=True)
class Program:
    """The running program.

    Attributes:
        name: For example nvdra-gpu-plugin.
        version: Its release.
        devices: Plural noun for the driver's devices, for messages: GPUs.
        reports_health: Whether the kubelet is told the health of the devices. The driver's part of
            it is then `Driver.health`.
    """

    name: str
    version: str
    devices: str
    reports_health: bool = False


@dataclass(frozen=True, slots=True)
class PluginContext:
    """The shared resources.

    Attributes:
        program: The running program.
        settings: What all plugins are configured with.
        host: The node's /proc, /sys, /dev and driver root.
        clock: The system's clock.
        telemetry: Spans, and the process's metrics.
        api: The client of the API server.
        events: Records Events of pods, claims and the Node.
        pages: Probes, metrics and debug pages.
        state_dir: The plugin's directory.
        standby: The phase before this instance became active, and its sockets.
        threads: All worker threads of the process.
        files: The worker thread for files.
    """

    program: Program
    settings: PluginSettings
    host: Host
    clock: Clock
    telemetry: Telemetry[PluginMetrics]
    api: Client
    events: EventRecorder
    pages: HttpPages
    state_dir: StateDir
    standby: Standby
    threads: WorkerGroup
    files: Worker

    @property
    def driver(self) -> str:
        """The driver's name, for example gpu.nvidia.com."""
        return self.settings.driver

    @property
    def node(self) -> NodeName:
        """The node's name."""
        return NodeName(self.settings.node_name)

    @property
    def metrics(self) -> PluginMetrics:
        """The process's metrics."""
        return self.telemetry.metrics

    @property
    def store(self) -> RecordStore:
        """The records of prepared claims."""
        return self.state_dir.store

    @property
    def checkpoint(self) -> KubeletCheckpoint:
        """The kubelet's checkpoint."""
        return KubeletCheckpoint(self.settings.kubelet_plugins_directory_path.parent)

    @property
    def record_nvml_call(self) -> CallObserver:
        """Adds an NVML call to the metrics, and to the trace of its caller."""
        return partial(_record_nvml_call, self.telemetry)


CreateWarmUp = Callable[[Host, CallObserver], WarmUp]
"""Creates what a driver does while its instance stands by."""


@asynccontextmanager
async def open_context(
    program: Program,
    settings: PluginSettings,
    logging: ConfiguredLogging,
    stop: Event,
    create_warm_up: CreateWarmUp | None = None,
) -> AsyncIterator[PluginContext | None]:
    """Open the shared resources; while another instance is active, stand by.

    Yields None if the process is stopped while it stands by or waits for a disk. The instance lock
    is released before the rest is closed, so that the next instance need not wait for it.

    Raises:
        DriverError: A newer release wrote the state file. `ApiUnavailable`: the client's
            configuration cannot be read.
        OSError: The directory cannot be used, and waiting would not help.
    """
    clock, host = SystemClock(), _host(settings)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        telemetry, api, events, pages = await enter(_reached(program, settings, logging, clock))
        instance = Instance(
            settings.driver, program.version, NodeName(settings.node_name), clock.now()
        )
        show = partial(_show, pages, instance, clock)
        warm_up = create_warm_up and create_warm_up(host, partial(_record_nvml_call, telemetry))
        standby = await enter(_standby(program, settings, api, show, telemetry, warm_up))
        opened = await enter(
            state_dir.lock(
                settings.plugin_dir,
                settings.nvidia_cdi_hook_path,
                _holder(settings),
                host.boot_id,
                clock,
                standby.wait,
                lambda problem: show({"state": lambda: problem}),
                stop,
            )
        )
        if opened is None:
            yield None
            return
        threads = await enter(WorkerGroup())
        yield PluginContext(
            program,
            settings,
            host,
            clock,
            telemetry,
            api,
            events,
            pages,
            opened,
            standby,
            threads,
            threads.start_worker("files"),
        )


@asynccontextmanager
async def _reached(
    program: Program, settings: PluginSettings, logging: ConfiguredLogging, clock: Clock
) -> AsyncIterator[tuple[Telemetry[PluginMetrics], Client, EventRecorder, HttpPages]]:
    """What the process needs to be seen, and to see the API server."""
    node = NodeName(settings.node_name)
    metrics = PluginMetrics(driver=settings.driver, node=node)
    flags = KubeSettings.from_flags(settings, program.name, program.version)
    async with (
        instrumentation.for_process(
            program.name, program.version, node, settings.pod_uid, clock=clock, metrics=metrics
        ) as telemetry,
        kube.connect(flags, request_observer.count_and_log(metrics)) as api,
        EventRecorder(api, program.name, node, clock.now).running() as events,
        aclosing(
            HttpPages(
                settings,
                metrics.registry,
                metrics.connection_dropped,
                telemetry.recorder,
                logging,
                clock,
            )
        ) as pages,
    ):
        yield telemetry, api, events, pages


@asynccontextmanager
async def _standby(
    program: Program,
    settings: PluginSettings,
    api: Client,
    show: Callable[[Mapping[str, Check], Callable[[], str]], Awaitable[None]],
    telemetry: Telemetry[PluginMetrics],
    warm_up: WarmUp | None,
) -> AsyncIterator[Standby]:
    """The sockets of the kubelet, from the standby on; closed when their calls have ended."""
    async with BackgroundTasks() as tasks, AsyncExitStack() as stack:
        health = HealthService() if program.reports_health else None
        standby = Standby(settings, api, show, telemetry, warm_up, tasks, health)
        stack.callback(standby.end_warm_up)
        await stack.enter_async_context(aclosing(standby.router))
        await stack.enter_async_context(standby.sockets)
        if health is not None:
            stack.callback(health.end)
        yield standby


def _host(settings: PluginSettings) -> Host:
    return Host(
        proc=settings.proc_root,
        sys=settings.sys_root,
        dev=settings.dev_root,
        driver_root=settings.container_driver_root,
        node_driver_root=settings.nvidia_driver_root,
    )


def _holder(settings: PluginSettings) -> Mapping[str, str]:
    """What the instance lock says of this process."""
    return {
        "pid": str(os.getpid()),
        **({"pod": settings.pod_name} if settings.pod_name else {}),
        instance_lock.SOCKET: str(settings.plugin_dir / registration.DRA_SOCKET),
    }


async def _show(
    pages: HttpPages,
    instance: Instance,
    clock: Clock,
    checks: Mapping[str, Check],
    active: Callable[[], str] = str,
) -> None:
    """Show the state of an instance that has not opened the state file yet."""

    def status() -> Document:
        return status_report.waiting_document(instance, checks, clock.now(), active())

    await pages.show(checks, status)


def _record_nvml_call(
    telemetry: Telemetry[PluginMetrics], function: str, seconds: float, is_ok: bool
) -> None:
    """Add an NVML call to the metrics, and to the trace of its caller."""
    error = None if is_ok else RetryableError(Reason.DEVICE_UNHEALTHY, f"{function} failed")
    telemetry.record_nvml_call(function, seconds, error)
