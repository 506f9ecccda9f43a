"""The wiring: what a ComputeDomain plugin is made of, in the order of its start."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial

from nvdra_api.runtime.http import ports, probes
from nvdra_api.runtime.kube import client as kube
from nvdra_api.runtime.kube import observation
from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.connection import KubeSettings
from nvdra_api.runtime.kube.events import Events
from nvdra_api.runtime.kube.publisher import Publisher
from nvdra_api.runtime.kubelet import server as kubelet_server
from nvdra_api.runtime.kubelet.server import Kubelet
from nvdra_api.runtime.node.host import Host
from nvdra_api.runtime.node.store import Store
from nvdra_api.runtime.plugin import checks, cleanup, home, hook, rebuild, roots, slices, upkeep
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
from nvdra_api.types.gates import Feature
from nvdra_api.types.ids import ClaimUID, NodeName
from nvdra_cdi.errors import CDIError
from nvdra_cdi.host import Host as CdiHost
from nvdra_cdi.nvidia import roots as driver_roots
from nvdra_cdi.nvidia.options import Options

from nvdra_cd_plugin import devices, fabric_watch, label_watch, publish, sweeping
from nvdra_cd_plugin.__about__ import __version__
from nvdra_cd_plugin.adoption import Adoption
from nvdra_cd_plugin.cdi_specs import SpecFiles
from nvdra_cd_plugin.channel_claims import Channels, DomainChannels, HostChannels
from nvdra_cd_plugin.daemon_claims import DaemonClaims
from nvdra_cd_plugin.daemon_watch import DaemonWatch
from nvdra_cd_plugin.disk import Disk
from nvdra_cd_plugin.domain_files import DomainFiles
from nvdra_cd_plugin.domains import Domains
from nvdra_cd_plugin.edits import Place
from nvdra_cd_plugin.fabric_watch import FabricWatch, NvmlLook, Rules
from nvdra_cd_plugin.host_imex import HostImex
from nvdra_cd_plugin.joining import Membership
from nvdra_cd_plugin.label_watch import LabelWatch
from nvdra_cd_plugin.node_devices import NodeDevices
from nvdra_cd_plugin.node_label import NodeLabels
from nvdra_cd_plugin.prepare import Preparer
from nvdra_cd_plugin.publish import Publication
from nvdra_cd_plugin.records import DomainHolding
from nvdra_cd_plugin.settings import Settings
from nvdra_cd_plugin.story import Story
from nvdra_cd_plugin.sweeping import Sweeping

PROGRAM = "nvdra-cd-plugin"

LOG = logs.logger(__name__)


async def main(settings: Settings, logging: Logging, stop: asyncio.Event) -> None:
    """Serve the node until `stop` is set.

    The slice, labels, CDI specs and prepared channels stay when it ends: pods keep running.
    """
    LOG.info("Starting", version=__version__, **process_settings.as_flags(settings))
    node, clock = NodeName(settings.node_name), SystemClock()
    metrics = Metrics(driver=names.COMPUTE_DOMAIN_DRIVER, node=node)
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
        store = ours.store
        held = HeldClaims(store, DomainHolding, metrics.held)
        threads = await enter(Workers())
        files, nodes = threads.started("files"), NodeDevices(host)
        options = partial(_cdi_options, settings, ours.hook_path)
        specs = SpecFiles(settings.cdi_root, options)
        look = NvmlLook(host, _rules(settings, nodes), partial(_note_nvml_call, telemetry))
        fabric = await enter(fabric_watch.running(look, threads.started("nvml")))
        kept = await enter(
            upkeep.running(
                files,
                ours.lock.keep,
                partial(hook.keep, settings.nvidia_cdi_hook_path, settings.plugin_dir),
                specs.keep,
                failures=(OSError, CDIError),
            )
        )
        api = await enter(
            kube.connected(
                KubeSettings.of(settings, PROGRAM, __version__), observation.counted(metrics)
            )
        )
        events = await enter(Events(api, PROGRAM, node, clock.now).running())
        publisher = await enter(
            slices.publisher(
                api, names.COMPUTE_DOMAIN_DRIVER, "IMEX channels", node, metrics, events
            ).running()
        )
        root_spans = await enter(roots.running(node, api, store, telemetry))
        flights = await enter(Flights[ClaimUID]())
        labels = NodeLabels(node, api)
        await enter(
            publish.running(
                Publication(
                    node,
                    fabric,
                    publisher,
                    events,
                    metrics,
                    labels if settings.gpu_clique_label_enabled else None,
                    is_host_managed=settings.is_host_managed,
                )
            )
        )
        refusals = Refusals(node, events, metrics, clock)
        turns = Turns(held.released)
        claims = Claims(api, turns, telemetry)
        domains, disk = Domains(api), Disk(files)
        joining = Membership(labels, held, domains)
        directories = DomainFiles(settings.plugin_dir)
        story = Story(node, telemetry, clock, store)
        preparer = _preparer(
            settings, api, claims, domains, fabric, held, turns, telemetry, story, joining,
            nodes, directories, specs, options, disk,
        )  # fmt: skip
        evidence = Evidence(settings.kubelet_plugins_directory_path.parent)
        adoption = Adoption(
            node,
            settings.feature_gates,
            claims.fetch,
            domains,
            fabric,
            nodes,
            disk,
            is_host_managed=settings.is_host_managed,
        )
        records = Rebuild(
            names.COMPUTE_DOMAIN_DRIVER, node, store, held, evidence, adoption.adopt, events
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
        await enter(
            sweeping.running(
                Sweeping(
                    held,
                    preparer.busy,
                    records.done,
                    specs,
                    directories,
                    disk,
                    None if settings.is_host_managed else joining,
                )
            )
        )
        if not settings.is_host_managed:
            await enter(label_watch.running(LabelWatch(node, api, joining, metrics.watch_restart)))
        await enter(
            cleanup.running(
                Cleanup(names.COMPUTE_DOMAIN_DRIVER, api, held, turns, evidence, service.release)
            )
        )
        kubelet = await enter(
            kubelet_server.serving(
                names.COMPUTE_DOMAIN_DRIVER,
                settings.plugin_dir,
                settings.kubelet_registrar_directory_path,
                service,
            )
        )
        ready = _checks(kubelet, publisher, fabric, store, held, kept)
        await enter(
            ports.public(settings.http_endpoint, ready, metrics.registry, settings.metrics_path)
        )
        report = Report(
            names.COMPUTE_DOMAIN_DRIVER,
            __version__,
            node,
            partial(devices.rows, fabric, held, is_host_managed=settings.is_host_managed),
            held,
            refusals,
            ready,
            clock,
        )
        await enter(
            ports.private(
                settings.debug_endpoint, telemetry.recorder, logging, clock, report.document
            )
        )
        await stop.wait()
        LOG.info("Stopping; what is held stays held, and its pods go on", claims=len(held))
        turns.close()


def _preparer(
    settings: Settings,
    api: Client,
    claims: Claims,
    domains: Domains,
    fabric: FabricWatch,
    held: HeldClaims[DomainHolding],
    turns: Turns,
    telemetry: Telemetry,
    story: Story,
    joining: Membership,
    nodes: NodeDevices,
    directories: DomainFiles,
    specs: SpecFiles,
    options: partial[Options],
    disk: Disk,
) -> Preparer:
    node, managed = NodeName(settings.node_name), settings.managed_namespaces

    def place() -> Place:
        return Place(options().target_dev_root)

    channels = Channels(nodes, specs, place, disk)
    watch = DaemonWatch(
        node, api, managed, settings.feature_gates, held, turns, telemetry.metrics.watch_restart
    )
    giving: DomainChannels | HostChannels
    if settings.is_host_managed:
        imex = HostImex(settings.container_driver_root, settings.imex_host_socket_path)
        giving = HostChannels(channels, fabric, imex, turns, telemetry)
    else:
        giving = DomainChannels(channels, fabric, joining, watch, turns, story, telemetry)
    return Preparer(
        node,
        settings.feature_gates,
        claims,
        domains,
        held,
        turns,
        telemetry,
        story,
        joining,
        channels,
        giving,
        DaemonClaims(node, api, managed, fabric, turns, nodes, directories, specs, place, disk),
        watch,
        specs,
        disk,
    )


def _rules(settings: Settings, nodes: NodeDevices) -> Rules:
    gates = settings.feature_gates
    return Rules(
        is_strict=gates.is_on(Feature.CRASH_ON_FABRIC_ERRORS),
        tolerates_unfinished=gates.is_on(Feature.FABRIC_PARTITIONING) and nodes.has_local_fabric(),
        needs_names=not settings.is_host_managed and gates.is_on(Feature.IMEX_DNS_NAMES),
    )


def _cdi_options(settings: Settings, hook_path: str) -> Options:
    """Where CDI generation looks, and what the host calls it."""
    driver_root = str(settings.container_driver_root)
    return Options(
        driver_root=driver_root,
        target_driver_root=str(settings.nvidia_driver_root),
        dev_root=driver_roots.device_tree(CdiHost(), driver_root, str(settings.dev_root)),
        sys_root=str(settings.sys_root),
        hook_path=hook_path,
    )


def _note_nvml_call(telemetry: Telemetry, function: str, seconds: float, is_ok: bool) -> None:
    error = None if is_ok else RetryableError(Reason.DEVICE_UNHEALTHY, f"{function} failed")
    telemetry.nvml_call(function, seconds, error)


def _checks(
    kubelet: Kubelet,
    publisher: Publisher,
    fabric: FabricWatch,
    store: Store,
    held: HeldClaims[DomainHolding],
    kept: Upkeep,
) -> Mapping[str, probes.Check]:
    """What must be true for pods to get channels here, each with the reason when it is not."""
    return {
        "fabric": partial(devices.fabric, fabric),
        "slices": checks.published(publisher),
        "state": checks.recorded(store, held),
        "files": lambda: kept.problem or None,
        "kubelet": checks.registered(kubelet),
    }
