"""The wiring: what a GPU plugin is made of, in the order of its start."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial

from nvdra_api.runtime.http import ports, probes
from nvdra_api.runtime.kube import client as kube
from nvdra_api.runtime.kube import observation
from nvdra_api.runtime.kube.connection import KubeSettings
from nvdra_api.runtime.kube.events import Events
from nvdra_api.runtime.kube.publisher import Publisher
from nvdra_api.runtime.kubelet import server as kubelet_server
from nvdra_api.runtime.kubelet.server import Kubelet
from nvdra_api.runtime.node.host import Host
from nvdra_api.runtime.node.store import Store
from nvdra_api.runtime.plugin import (
    checks,
    cleanup,
    home,
    hook,
    rebuild,
    roots,
    slices,
    upkeep,
)
from nvdra_api.runtime.plugin.cleanup import Cleanup
from nvdra_api.runtime.plugin.evidence import Evidence
from nvdra_api.runtime.plugin.fetching import Claims
from nvdra_api.runtime.plugin.held import HeldClaims
from nvdra_api.runtime.plugin.rebuild import Rebuild
from nvdra_api.runtime.plugin.refusals import Refusals
from nvdra_api.runtime.plugin.report import Report
from nvdra_api.runtime.plugin.service import Service
from nvdra_api.runtime.plugin.turns import Turns
from nvdra_api.runtime.plugin.upkeep import Upkeep
from nvdra_api.runtime.process import settings as process_settings
from nvdra_api.runtime.process.clock import SystemClock
from nvdra_api.runtime.process.flights import Flights
from nvdra_api.runtime.process.worker import Workers
from nvdra_api.runtime.telemetry import logs, traces
from nvdra_api.runtime.telemetry.logs import Logging
from nvdra_api.runtime.telemetry.metrics import Metrics
from nvdra_api.runtime.telemetry.traces import Telemetry
from nvdra_api.types import names
from nvdra_api.types.errors import Reason, RetryableError
from nvdra_api.types.gates import GATES, Feature
from nvdra_api.types.ids import ClaimUID, NodeName
from nvdra_cdi.errors import FileError
from nvdra_cdi.host import Host as CdiHost
from nvdra_cdi.nvidia import roots as driver_roots
from nvdra_cdi.nvidia.options import NEW_IN_1_20, Options

from nvdra_gpu_plugin import hardware, publish, report, retirement
from nvdra_gpu_plugin.__about__ import __version__
from nvdra_gpu_plugin.adoption import Adoption
from nvdra_gpu_plugin.cdi_specs import SpecFiles
from nvdra_gpu_plugin.conflicts import Holdings
from nvdra_gpu_plugin.hardware import Hardware
from nvdra_gpu_plugin.prepare import Preparer
from nvdra_gpu_plugin.publish import Publication
from nvdra_gpu_plugin.records import GpuHolding
from nvdra_gpu_plugin.settings import Settings

PROGRAM = "nvdra-gpu-plugin"

GATES_IN_USE = frozenset({Feature.LIST_ATTRIBUTES, Feature.TIME_SLICING, Feature.MPS})
"""Gates that change something here: attributes, and which configs are valid."""

LOG = logs.logger(__name__)


async def main(settings: Settings, logging: Logging, stop: asyncio.Event) -> None:
    """Serve the node until `stop` is set.

    Slices, CDI specs and prepared devices stay when it ends: pods keep running.
    """
    LOG.info("Starting", version=__version__, **process_settings.as_flags(settings))
    _warn_of_idle_gates(settings)
    node, clock = NodeName(settings.node_name), SystemClock()
    metrics = Metrics(driver=names.GPU_DRIVER, node=node)
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
            return
        telemetry = await enter(
            traces.of_process(
                PROGRAM, __version__, node, settings.pod_uid, clock=clock, metrics=metrics
            )
        )
        store, holdings = ours.store, Holdings()
        held = HeldClaims(store, GpuHolding, metrics.held, holdings)
        threads = await enter(Workers())
        files, specs = threads.started("files"), SpecFiles(settings.cdi_root, clock)
        gpus = await enter(
            hardware.running(
                host,
                partial(_cdi_options, settings, ours.hook_path),
                specs,
                partial(_note_nvml_call, telemetry),
                clock,
                threads,
                files,
            )
        )
        kept = await enter(
            upkeep.running(
                files,
                ours.lock.keep,
                partial(hook.keep, settings.nvidia_cdi_hook_path, settings.plugin_dir),
                specs.keep,
                failures=(OSError, FileError),
            )
        )
        api = await enter(
            kube.connected(
                KubeSettings.of(settings, PROGRAM, __version__), observation.counted(metrics)
            )
        )
        events = await enter(Events(api, PROGRAM, node, clock.now).running())
        publisher = await enter(
            slices.publisher(api, names.GPU_DRIVER, "GPUs", node, metrics, events).running()
        )
        root_spans = await enter(roots.running(node, api, store, telemetry))
        flights = await enter(Flights[ClaimUID]())
        await enter(
            publish.running(
                Publication(node, settings.feature_gates, gpus, publisher, events, metrics)
            )
        )
        refusals = Refusals(node, events, metrics, clock)
        turns = Turns(held.released)
        claims = Claims(api, turns, telemetry)
        preparer = Preparer(node, settings.feature_gates, claims, gpus, held, holdings, telemetry)
        evidence = Evidence(settings.kubelet_plugins_directory_path.parent)
        records = Rebuild(
            names.GPU_DRIVER,
            node,
            store,
            held,
            evidence,
            Adoption(gpus, claims.fetch).adopt,
            events,
        )
        service = Service(
            node,
            claims.fetch,
            preparer,
            held,
            records,
            turns,
            flights,
            root_spans,
            refusals,
            telemetry,
            clock,
        )
        await enter(rebuild.running(records))
        await enter(retirement.running(gpus, held, records))
        await enter(
            cleanup.running(Cleanup(names.GPU_DRIVER, api, held, turns, evidence, service.release))
        )
        kubelet = await enter(
            kubelet_server.serving(
                names.GPU_DRIVER,
                settings.plugin_dir,
                settings.kubelet_registrar_directory_path,
                service,
            )
        )
        ready = _checks(kubelet, publisher, gpus, store, held, kept)
        await enter(
            ports.public(settings.http_endpoint, ready, metrics.registry, settings.metrics_path)
        )
        status = Report(
            names.GPU_DRIVER,
            __version__,
            node,
            partial(report.devices, gpus, held),
            held,
            refusals,
            ready,
            clock,
        )
        await enter(
            ports.private(
                settings.debug_endpoint, telemetry.recorder, logging, clock, status.document
            )
        )
        await stop.wait()
        LOG.info("Stopping; what is held stays held, and its pods go on", claims=_left(held))
        turns.close()


def _left(held: HeldClaims[GpuHolding]) -> list[str]:
    """What stays prepared without the driver: each claim, and the pods that use it."""
    return [f"{claim.ref} of {', '.join(claim.pod_names)}" for claim in held.values()]


def _warn_of_idle_gates(settings: Settings) -> None:
    """A gate that is on and does nothing yet is told, or somebody waits for its feature."""
    on = {feature for feature in GATES if settings.feature_gates.is_on(feature)}
    idle = sorted(on - GATES_IN_USE - {gate for gate in GATES if GATES[gate].default})
    if idle:
        LOG.warning("Feature gates that are on have no effect in this version", gates=idle)


def _cdi_options(settings: Settings, hook_path: str) -> Options:
    """Where CDI generation looks, and what the host calls it."""
    driver_root = str(settings.container_driver_root)
    return Options(
        driver_root=driver_root,
        target_driver_root=str(settings.nvidia_driver_root),
        dev_root=driver_roots.device_tree(CdiHost(), driver_root, str(settings.dev_root)),
        sys_root=str(settings.sys_root),
        hook_path=hook_path,
        disabled_hooks=NEW_IN_1_20,
    )


def _note_nvml_call(telemetry: Telemetry, function: str, seconds: float, is_ok: bool) -> None:
    error = None if is_ok else RetryableError(Reason.DEVICE_UNHEALTHY, f"{function} failed")
    telemetry.nvml_call(function, seconds, error)


def _checks(
    kubelet: Kubelet,
    publisher: Publisher,
    gpus: Hardware,
    store: Store,
    held: HeldClaims[GpuHolding],
    kept: Upkeep,
) -> Mapping[str, probes.Check]:
    """What must be true for pods to get GPUs here, each with the reason when it is not."""
    return {
        "driver": lambda: (
            gpus.problem or (probes.Remark(publish.NO_GPU) if gpus.is_empty else None)
        ),
        "slices": checks.published(publisher),
        "state": checks.recorded(store, held),
        "files": lambda: kept.problem or None,
        "kubelet": checks.registered(kubelet),
    }
