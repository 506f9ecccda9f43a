# SPDX-License-Identifier: Apache-2.0
"""Creates the parts of the plugin and starts them in order."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nvdra_api import names
from nvdra_api.errors import DriverError
from nvdra_api.gates import Feature
from nvdra_cdi.errors import CDIError
from nvdra_cdi.nvidia import driver_root
from nvdra_cdi.nvidia.options import Options
from nvdra_cdi.rooted_files import RootedFiles
from nvdra_runtime.claims.claim_reader import ClaimReader
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.claims.engine import Engine
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.record_recovery import RecordRecovery
from nvdra_runtime.kubeletplugin import nvml_release, plugin_context, slice_publisher, wiring
from nvdra_runtime.kubeletplugin.plugin_context import PluginContext, Program
from nvdra_runtime.kubeletplugin.wiring import Driver
from nvdra_runtime.node.nvml_lock import SessionHold
from nvdra_runtime.process import background_tasks
from nvdra_runtime.settings import loader
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.logs import ConfiguredLogging

from nvdra_cd_plugin import status_report
from nvdra_cd_plugin.__about__ import __version__
from nvdra_cd_plugin.cdi.edits import DevRoot
from nvdra_cd_plugin.cdi.spec_files import SpecFiles
from nvdra_cd_plugin.claims.changes.join_domain import JoinDomainKind
from nvdra_cd_plugin.claims.claim_admission import ClaimAdmission
from nvdra_cd_plugin.claims.claim_specs import ClaimSpecs
from nvdra_cd_plugin.claims.node_readiness import NodeReadiness
from nvdra_cd_plugin.claims.periodic_cleanup import PeriodicCleanup
from nvdra_cd_plugin.claims.preparer import Preparer
from nvdra_cd_plugin.claims.record_builder import RecordBuilder
from nvdra_cd_plugin.daemon.clique_files import CliqueFiles
from nvdra_cd_plugin.daemon.domain_directories import DomainDirectories
from nvdra_cd_plugin.daemon.host_imex import HostImex
from nvdra_cd_plugin.daemon.liveness import LivenessCheck
from nvdra_cd_plugin.daemon.pod_lookup import DaemonPodLookup
from nvdra_cd_plugin.daemon.readiness_watch import DomainEntries, ReadinessWatch
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord
from nvdra_cd_plugin.domains.lookup import DomainLookup
from nvdra_cd_plugin.fabric.known_clique import KnownClique
from nvdra_cd_plugin.fabric.monitor import FabricMonitor
from nvdra_cd_plugin.fabric.nvml_query import FabricPolicy, FabricQuery
from nvdra_cd_plugin.fabric.standby_check import StandbyCheck
from nvdra_cd_plugin.membership.domain_spans import DomainSpans
from nvdra_cd_plugin.membership.label_watch import LabelWatch
from nvdra_cd_plugin.membership.node_labels import NodeLabels
from nvdra_cd_plugin.membership.node_membership import NodeMembership
from nvdra_cd_plugin.node.file_worker import FileWorker
from nvdra_cd_plugin.node.imex_devices import ImexDevices
from nvdra_cd_plugin.node.reference_checkpoint import ReferenceCheckpoint
from nvdra_cd_plugin.publishing.pool_updater import PoolUpdater
from nvdra_cd_plugin.settings import Settings

PROGRAM = "nvdra-cd-plugin"

LOG = logs.logger(__name__)


@dataclass(frozen=True, slots=True)
class _Node:
    """What this process finds and writes on its node.

    Attributes:
        specs: The CDI specs, made with these `options`.
    """

    settings: Settings
    context: PluginContext
    options: Callable[[], Options]
    devices: ImexDevices
    directories: DomainDirectories
    specs: SpecFiles
    files: FileWorker


@dataclass(frozen=True, slots=True)
class _Claims:
    """The claims of the node, and what they are prepared with.

    Attributes:
        prepared: Their records.
        waits: The prepares that wait.
        reader: Reads claims from the API server.
    """

    prepared: PreparedClaims[DomainClaimRecord]
    waits: DeviceWaitQueue
    reader: ClaimReader
    domains: DomainLookup
    membership: NodeMembership
    preparer: Preparer


async def main(settings: Settings, logging: ConfiguredLogging, stop: asyncio.Event) -> None:
    """Serve the node until `stop` is set.

    The slice, the labels, the CDI specs and the prepared channels stay: pods keep running.
    """
    LOG.info("Starting", version=__version__, **loader.as_flags(settings))
    program = Program(PROGRAM, __version__, devices="IMEX channels")
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        context = await enter(
            plugin_context.open_context(program, settings, logging, stop, StandbyCheck)
        )
        if context is None:
            return
        node = _open_node(settings, context)
        fabric = _open_fabric(node, stop)
        await enter(background_tasks.running(fabric=fabric.run))
        publisher = await enter(slice_publisher.create_publisher(context).running())
        labels = NodeLabels(context.node, context.api)
        claims = _open_claims(node, fabric, labels)
        recovery = _open_recovery(node, fabric, claims)
        if not settings.is_host_managed:
            await enter(_labels_kept(node, fabric, claims))
        await enter(_files_kept(node, claims, recovery))
        pool_updater = PoolUpdater(
            context.node,
            fabric,
            publisher,
            context.events,
            context.metrics,
            labels if settings.gpu_clique_label_enabled else None,
            is_host_managed=settings.is_host_managed,
        )
        await enter(
            background_tasks.running(
                pool_updater=pool_updater.run, clique_label=pool_updater.run_clique_label
            )
        )
        driver = Driver(
            prepared_claims=claims.prepared,
            recovery=recovery,
            wait_queue=claims.waits,
            claim_reader=claims.reader,
            preparer=claims.preparer,
            publisher=publisher,
            describe_devices=partial(
                status_report.rows,
                fabric,
                claims.prepared,
                is_host_managed=settings.is_host_managed,
            ),
            readiness_checks={"fabric": partial(status_report.fabric_check, fabric)},
            restore_files=node.specs.restore,
            restore_errors=(OSError, CDIError),
        )
        await enter(wiring.serve(context, driver))
        await stop.wait()


def _open_node(settings: Settings, context: PluginContext) -> _Node:
    options = partial(_cdi_options, settings, context.state_dir.hook_path)
    devices, directories = ImexDevices(context.host), DomainDirectories(settings.plugin_dir)
    specs, files = SpecFiles(settings.cdi_root, options), FileWorker(context.files)
    return _Node(settings, context, options, devices, directories, specs, files)


def _open_fabric(node: _Node, stop: asyncio.Event) -> FabricMonitor:
    settings, context = node.settings, node.context
    policy = _fabric_policy(settings, node.devices)
    return FabricMonitor(
        FabricQuery(
            context.host, policy, context.record_nvml_call, SessionHold(_gpu_plugin_dir(settings))
        ),
        context.threads.start_worker("nvml"),
        KnownClique(settings.plugin_dir, context.host, policy),
        context.files,
        partial(_read_release, settings, context),
        stop,
    )


def _open_claims(node: _Node, fabric: FabricMonitor, labels: NodeLabels) -> _Claims:
    settings, context = node.settings, node.context
    name, api, telemetry = context.node, context.api, context.telemetry
    gates, namespaces = settings.feature_gates, settings.managed_namespaces
    is_host_managed = settings.is_host_managed
    prepared = PreparedClaims(context.store, DomainClaimRecord, context.metrics.set_prepared)
    waits = DeviceWaitQueue(prepared.wait_removed)
    domains = DomainLookup(api, waits)
    membership = NodeMembership(labels, prepared, domains, waits)
    spans = DomainSpans(name, telemetry, context.clock, context.store)
    pods = DaemonPodLookup(name, api, namespaces)
    entries = DomainEntries(api, namespaces, gates, context.metrics.watch_restart)
    liveness = partial(LivenessCheck, node.directories, node.files, pods, prepared.is_of_this_boot)
    daemons = ReadinessWatch(name, entries, prepared, pods, liveness, waits)
    join = JoinDomainKind(prepared, membership, fabric, daemons, waits, spans, telemetry)
    specs = ClaimSpecs(
        node.devices,
        node.directories,
        node.specs,
        lambda: DevRoot(node.options().target_dev_root),
        node.files,
        spans,
        telemetry,
    )
    imex = HostImex(settings.container_driver_root, settings.imex_host_socket_path)
    preparer = Preparer(
        name,
        prepared,
        ClaimAdmission(
            name, gates, namespaces, api, domains, waits, telemetry, is_host_managed=is_host_managed
        ),
        NodeReadiness(fabric, imex, waits, telemetry),
        Engine(lambda _: join, (specs,), prepared, lambda _: False, telemetry),
        None if is_host_managed else join,
        daemons,
        spans,
    )
    reader = ClaimReader(api, waits, telemetry)
    return _Claims(prepared, waits, reader, domains, membership, preparer)


def _open_recovery(
    node: _Node, fabric: FabricMonitor, claims: _Claims
) -> RecordRecovery[DomainClaimRecord]:
    settings, context = node.settings, node.context
    builder = RecordBuilder(
        context.node,
        settings.feature_gates,
        claims.reader,
        claims.domains,
        fabric,
        node.devices,
        node.files,
        is_host_managed=settings.is_host_managed,
    )
    return RecordRecovery(
        context.driver,
        context.node,
        context.store,
        claims.prepared,
        context.checkpoint,
        builder.build,
        context.events,
    )


def _labels_kept(
    node: _Node, fabric: FabricMonitor, claims: _Claims
) -> AbstractAsyncContextManager[None]:
    """Keep the node's label and its clique for daemons as the claims need them."""
    context = node.context
    restart = context.metrics.watch_restart
    watch = LabelWatch(context.node, context.api, claims.membership, restart)
    clique_files = CliqueFiles(
        lambda: fabric.status.gpus_clique, claims.prepared, node.directories, node.files
    )
    return background_tasks.running(label_watch=watch.run, clique_files=clique_files.run)


def _files_kept(
    node: _Node, claims: _Claims, recovery: RecordRecovery[DomainClaimRecord]
) -> AbstractAsyncContextManager[None]:
    """Remove what no claim needs."""
    settings = node.settings
    cleanup = PeriodicCleanup(
        claims.prepared,
        claims.preparer.in_progress,
        recovery.done,
        node.specs,
        node.directories,
        ReferenceCheckpoint(settings.plugin_dir),
        node.files,
        None if settings.is_host_managed else claims.membership,
    )
    return background_tasks.running(
        cleanup=cleanup.run, reference_checkpoint=cleanup.remove_reference_checkpoint
    )


def _fabric_policy(settings: Settings, devices: ImexDevices) -> FabricPolicy:
    gates = settings.feature_gates
    has_partitions = gates.is_enabled(Feature.FABRIC_PARTITIONING) and devices.has_local_fabric()
    uses_names = not settings.is_host_managed and gates.is_enabled(Feature.IMEX_DNS_NAMES)
    return FabricPolicy(
        is_strict=gates.is_enabled(Feature.CRASH_ON_FABRIC_ERRORS),
        tolerates_unfinished=has_partitions,
        requires_dns_names=uses_names,
    )


async def _read_release(settings: Settings, context: PluginContext) -> DriverError | None:
    """Why NVML must be left alone."""
    directory, now = _gpu_plugin_dir(settings), context.clock.now()
    release = await context.files.run(nvml_release.in_force, directory, now)
    return None if release is None else nvml_release.error(release, context.node)


def _gpu_plugin_dir(settings: Settings) -> Path:
    """The GPU plugin's directory, beside this one's."""
    return settings.kubelet_plugins_directory_path / names.GPU_DRIVER


def _cdi_options(settings: Settings, hook_path: str) -> Options:
    """Where CDI generation looks for files, and their paths on the host."""
    root = str(settings.container_driver_root)
    return Options(
        driver_root=root,
        target_driver_root=str(settings.nvidia_driver_root),
        dev_root=driver_root.resolve_dev_root(RootedFiles(), root, str(settings.dev_root)),
        sys_root=str(settings.sys_root),
        hook_path=hook_path,
    )
