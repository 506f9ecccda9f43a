"""The wiring: what a ComputeDomain plugin is made of, in the order of its start."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial

from nvdra_api.runtime.plugin import foundation, front, slices
from nvdra_api.runtime.plugin.fetching import Claims
from nvdra_api.runtime.plugin.foundation import Foundation, Program
from nvdra_api.runtime.plugin.front import Driver
from nvdra_api.runtime.plugin.held import HeldClaims
from nvdra_api.runtime.plugin.rebuild import Rebuild
from nvdra_api.runtime.plugin.turns import Turns
from nvdra_api.runtime.process import background
from nvdra_api.runtime.process import settings as process_settings
from nvdra_api.runtime.telemetry import logs
from nvdra_api.runtime.telemetry.logs import Logging
from nvdra_api.types.gates import Feature
from nvdra_cdi.errors import CDIError
from nvdra_cdi.host import Host as CdiHost
from nvdra_cdi.nvidia import roots as driver_roots
from nvdra_cdi.nvidia.options import Options

from nvdra_cd_plugin import devices, fabric_watch
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
    program = Program(PROGRAM, __version__, devices="IMEX channels")
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        base = await enter(foundation.laid(program, settings, stop))
        if base is None:
            return
        nodes = NodeDevices(base.host)
        look = NvmlLook(base.host, _rules(settings, nodes), base.note_nvml_call)
        fabric = await enter(fabric_watch.running(look, base.threads.started("nvml")))
        publisher = await enter(slices.publisher(base).running())
        labels = NodeLabels(base.node, base.api)
        publication = Publication(
            base.node,
            fabric,
            publisher,
            base.events,
            base.metrics,
            labels if settings.gpu_clique_label_enabled else None,
            is_host_managed=settings.is_host_managed,
        )

        held = HeldClaims(base.store, DomainHolding, base.metrics.held)
        turns = Turns(held.released)
        claims = Claims(base.api, turns, base.telemetry)
        domains, disk = Domains(base.api), Disk(base.files)
        joining = Membership(labels, held, domains)
        options = partial(_cdi_options, settings, base.home.hook_path)
        specs, directories = SpecFiles(settings.cdi_root, options), DomainFiles(settings.plugin_dir)
        preparer = _preparer(
            settings, base, claims, domains, fabric, held, turns, joining, nodes, directories,
            specs, options, disk,
        )  # fmt: skip
        adoption = Adoption(
            base.node,
            settings.feature_gates,
            claims.fetch,
            domains,
            fabric,
            nodes,
            disk,
            is_host_managed=settings.is_host_managed,
        )
        records = Rebuild(
            base.driver,
            base.node,
            base.store,
            held,
            base.evidence,
            adoption.adopt,
            base.events,
        )
        sweeping = Sweeping(
            held,
            preparer.busy,
            records.done,
            specs,
            directories,
            disk,
            None if settings.is_host_managed else joining,
        )
        if not settings.is_host_managed:
            watch = LabelWatch(base.node, base.api, joining, base.metrics.watch_restart)
            await enter(background.tasks(label_watch=watch.run()))
        await enter(
            background.tasks(
                publication=publication.run(),
                clique_label=publication.show_clique(),
                sweeping=sweeping.run(),
            )
        )
        driver = Driver(
            held=held,
            records=records,
            turns=turns,
            claims=claims,
            preparer=preparer,
            publisher=publisher,
            devices=partial(devices.rows, fabric, held, is_host_managed=settings.is_host_managed),
            check={"fabric": partial(devices.fabric, fabric)},
            chore=specs.keep,
            failures=(OSError, CDIError),
        )
        await enter(front.serving(base, settings, driver, logging))
        await stop.wait()


def _preparer(
    settings: Settings,
    base: Foundation,
    claims: Claims,
    domains: Domains,
    fabric: FabricWatch,
    held: HeldClaims[DomainHolding],
    turns: Turns,
    joining: Membership,
    nodes: NodeDevices,
    directories: DomainFiles,
    specs: SpecFiles,
    options: partial[Options],
    disk: Disk,
) -> Preparer:
    node, api, telemetry = base.node, base.api, base.telemetry
    gates, managed = settings.feature_gates, settings.managed_namespaces
    story = Story(node, telemetry, base.clock, base.store)

    def place() -> Place:
        return Place(options().target_dev_root)

    channels = Channels(nodes, specs, place, disk)
    watch = DaemonWatch(node, api, managed, gates, held, turns, telemetry.metrics.watch_restart)
    giving: DomainChannels | HostChannels
    if settings.is_host_managed:
        imex = HostImex(settings.container_driver_root, settings.imex_host_socket_path)
        giving = HostChannels(channels, fabric, imex, turns, telemetry)
    else:
        giving = DomainChannels(channels, fabric, joining, watch, turns, story, telemetry)
    return Preparer(
        node,
        gates,
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
