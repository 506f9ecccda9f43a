"""Resources shared by all kubelet plugins: directory, API server, telemetry, Events."""

from asyncio import Event
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import NodeName

from nvdra_runtime.claims.kubelet_checkpoint import KubeletCheckpoint
from nvdra_runtime.kube import client as kube
from nvdra_runtime.kube import request_observer
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.connection import KubeSettings
from nvdra_runtime.kube.event_recorder import EventRecorder
from nvdra_runtime.kubeletplugin import state_dir
from nvdra_runtime.kubeletplugin.settings import PluginSettings
from nvdra_runtime.kubeletplugin.state_dir import StateDir
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.process.clock import Clock, SystemClock
from nvdra_runtime.process.worker import Worker, WorkerGroup
from nvdra_runtime.telemetry import instrumentation
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics


@dataclass(frozen=True, slots=True)
class Program:
    """The running program.

    Attributes:
        name: For example nvdra-gpu-plugin.
        version: Its release.
        devices: Plural noun for the driver's devices, for messages: GPUs.
    """

    name: str
    version: str
    devices: str


@dataclass(frozen=True, slots=True)
class PluginContext:
    """The shared resources.

    Attributes:
        program: The running program.
        driver: The driver's name, for example gpu.nvidia.com.
        node: The node's name.
        host: The node's /proc, /sys, /dev and driver root.
        clock: The system's clock.
        state_dir: The plugin's directory.
        threads: All worker threads of the process.
        files: The worker thread for files.
        api: The client of the API server.
        events: Records Events of pods, claims and the Node.
        metrics: The process's metrics.
        telemetry: Spans.
        checkpoint: The kubelet's checkpoint.
    """

    program: Program
    driver: str
    node: NodeName
    host: Host
    clock: Clock
    state_dir: StateDir
    threads: WorkerGroup
    files: Worker
    api: Client
    events: EventRecorder
    metrics: PluginMetrics
    telemetry: Telemetry[PluginMetrics]
    checkpoint: KubeletCheckpoint

    @property
    def store(self) -> RecordStore:
        """The records of prepared claims."""
        return self.state_dir.store

    def record_nvml_call(self, function: str, seconds: float, is_ok: bool) -> None:
        """Add an NVML call to the metrics, and to the trace of its caller."""
        error = None if is_ok else RetryableError(Reason.DEVICE_UNHEALTHY, f"{function} failed")
        self.telemetry.record_nvml_call(function, seconds, error)


@asynccontextmanager
async def open_context(
    program: Program, settings: PluginSettings, stop: Event
) -> AsyncIterator[PluginContext | None]:
    """Open the shared resources. Yields None if the process is stopped while it waits for a disk.

    Raises:
        DriverError: Another instance serves this node, or a newer release wrote the state file.
            `ApiUnavailable`: the client's configuration cannot be read.
        OSError: The directory cannot be used, and waiting would not help.
    """
    node, clock = NodeName(settings.node_name), SystemClock()
    metrics = PluginMetrics(driver=settings.driver, node=node)
    host = Host(
        proc=settings.proc_root,
        sys=settings.sys_root,
        dev=settings.dev_root,
        driver_root=settings.container_driver_root,
    )
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        opened = await enter(
            state_dir.lock(
                settings.plugin_dir,
                settings.nvidia_cdi_hook_path,
                settings.http_endpoint,
                settings.pod_name,
                host.boot_id,
                clock,
                stop,
            )
        )
        if opened is None:
            yield None
            return
        telemetry = await enter(
            instrumentation.for_process(
                program.name, program.version, node, settings.pod_uid, clock=clock, metrics=metrics
            )
        )
        threads = await enter(WorkerGroup())
        api = await enter(
            kube.connect(
                KubeSettings.from_flags(settings, program.name, program.version),
                request_observer.count_and_log(metrics),
            )
        )
        yield PluginContext(
            program=program,
            driver=settings.driver,
            node=node,
            host=host,
            clock=clock,
            state_dir=opened,
            threads=threads,
            files=threads.start_worker("files"),
            api=api,
            events=await enter(EventRecorder(api, program.name, node, clock.now).running()),
            metrics=metrics,
            telemetry=telemetry,
            checkpoint=KubeletCheckpoint(settings.kubelet_plugins_directory_path.parent),
        )
