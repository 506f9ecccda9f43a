"""What every plugin of a node stands on: its directory, the API server, the ways to tell people."""

from asyncio import Event
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from nvdra_api.runtime.kube import client as kube
from nvdra_api.runtime.kube import observation
from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.connection import KubeSettings
from nvdra_api.runtime.kube.events import Events
from nvdra_api.runtime.node.host import Host
from nvdra_api.runtime.node.store import Store
from nvdra_api.runtime.plugin import home
from nvdra_api.runtime.plugin.evidence import Evidence
from nvdra_api.runtime.plugin.home import Home
from nvdra_api.runtime.plugin.node_settings import NodeSettings
from nvdra_api.runtime.process.clock import Clock, SystemClock
from nvdra_api.runtime.process.worker import Worker, Workers
from nvdra_api.runtime.telemetry import traces
from nvdra_api.runtime.telemetry.metrics import Metrics
from nvdra_api.runtime.telemetry.traces import Telemetry
from nvdra_api.types.errors import Reason, RetryableError
from nvdra_api.types.ids import NodeName


@dataclass(frozen=True, slots=True)
class Program:
    """Who serves.

    Attributes:
        name: As people call it: nvdra-gpu-plugin.
        version: Of the package.
        devices: What people call the driver's devices: GPUs.
    """

    name: str
    version: str
    devices: str


@dataclass(frozen=True, slots=True)
class Foundation:
    """What is there before the first device has been looked at.

    Attributes:
        program: Who we are.
        driver: Which one: gpu.nvidia.com.
        node: Where we are.
        host: The node's /proc, /sys, /dev and driver.
        clock: The system's.
        home: The plugin's directory.
        threads: Those of the process.
        files: The one for files.
        api: The API server.
        events: To pods, claims and the Node.
        metrics: Of the process.
        telemetry: Spans.
        evidence: What the kubelet knows.
    """

    program: Program
    driver: str
    node: NodeName
    host: Host
    clock: Clock
    home: Home
    threads: Workers
    files: Worker
    api: Client
    events: Events
    metrics: Metrics
    telemetry: Telemetry[Metrics]
    evidence: Evidence

    @property
    def store(self) -> Store:
        """What is prepared on this node."""
        return self.home.store

    def note_nvml_call(self, function: str, seconds: float, is_ok: bool) -> None:
        """Put a call of NVML into the trace of what made it."""
        error = None if is_ok else RetryableError(Reason.DEVICE_UNHEALTHY, f"{function} failed")
        self.telemetry.nvml_call(function, seconds, error)


@asynccontextmanager
async def laid(
    program: Program, settings: NodeSettings, stop: Event
) -> AsyncIterator[Foundation | None]:
    """Have it for the block; None when the process was stopped while its disk was no good.

    Raises:
        DriverError: Another instance serves this node; a newer release wrote the state;
            ApiUnavailable: the way to the API server cannot be read.
        OSError: The directory cannot be used, and no time will change that.
    """
    node, clock = NodeName(settings.node_name), SystemClock()
    metrics = Metrics(driver=settings.driver, node=node)
    host = Host(
        proc=settings.proc_root,
        sys=settings.sys_root,
        dev=settings.dev_root,
        driver_root=settings.container_driver_root,
    )
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        ours = await enter(
            home.taken(
                settings.plugin_dir,
                settings.nvidia_cdi_hook_path,
                settings.http_endpoint,
                settings.pod_name,
                host.boot_id(),
                clock,
                stop,
            )
        )
        if ours is None:
            yield None
            return
        telemetry = await enter(
            traces.of_process(
                program.name, program.version, node, settings.pod_uid, clock=clock, metrics=metrics
            )
        )
        threads = await enter(Workers())
        api = await enter(
            kube.connected(
                KubeSettings.of(settings, program.name, program.version),
                observation.counted(metrics),
            )
        )
        yield Foundation(
            program=program,
            driver=settings.driver,
            node=node,
            host=host,
            clock=clock,
            home=ours,
            threads=threads,
            files=threads.started("files"),
            api=api,
            events=await enter(Events(api, program.name, node, clock.now).running()),
            metrics=metrics,
            telemetry=telemetry,
            evidence=Evidence(settings.kubelet_plugins_directory_path.parent),
        )
