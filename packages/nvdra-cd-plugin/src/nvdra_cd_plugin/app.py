# SPDX-License-Identifier: Apache-2.0
"""Creates the parts of the plugin and starts them in order."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial

from nvdra_api import names
from nvdra_api.errors import DriverError
from nvdra_api.gates import Feature
from nvdra_cdi.errors import CDIError
from nvdra_cdi.nvidia import driver_root
from nvdra_cdi.nvidia.options import Options
from nvdra_cdi.rooted_files import RootedFiles
from nvdra_runtime.claims.claim_reader import ClaimReader
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.record_recovery import RecordRecovery
from nvdra_runtime.kubeletplugin import nvml_release, plugin_context, slice_publisher, wiring
from nvdra_runtime.kubeletplugin.plugin_context import PluginContext, Program
from nvdra_runtime.kubeletplugin.wiring import Driver
from nvdra_runtime.process import background_tasks
from nvdra_runtime.settings import loader
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.logs import ConfiguredLogging

from nvdra_cd_plugin import status_report
from nvdra_cd_plugin.__about__ import __version__
from nvdra_cd_plugin.cdi.channel_specs import ChannelSpecs
from nvdra_cd_plugin.cdi.daemon_specs import DaemonSpecs
from nvdra_cd_plugin.cdi.edits import DevRoot
from nvdra_cd_plugin.cdi.spec_files import SpecFiles
from nvdra_cd_plugin.claims.domain_channel import DomainChannelStrategy
from nvdra_cd_plugin.claims.domain_daemon import DomainDaemonStrategy
from nvdra_cd_plugin.claims.host_channel import HostChannelStrategy
from nvdra_cd_plugin.claims.periodic_cleanup import PeriodicCleanup
from nvdra_cd_plugin.claims.preparer import Preparer
from nvdra_cd_plugin.claims.record_builder import RecordBuilder
from nvdra_cd_plugin.claims.record_writer import RecordWriter
from nvdra_cd_plugin.claims.strategy import ClaimStrategy
from nvdra_cd_plugin.daemon.clique_files import CliqueFiles
from nvdra_cd_plugin.daemon.domain_directories import DomainDirectories
from nvdra_cd_plugin.daemon.host_imex import HostImex
from nvdra_cd_plugin.daemon.pod_admission import PodAdmission
from nvdra_cd_plugin.daemon.readiness_watch import ReadinessWatch
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
        devices = ImexDevices(context.host)
        policy = _fabric_policy(settings, devices)
        fabric = FabricMonitor(
            FabricQuery(context.host, policy, context.record_nvml_call),
            context.threads.start_worker("nvml"),
            KnownClique(settings.plugin_dir, context.host, policy),
            context.files,
            partial(_read_release, settings, context),
            stop,
        )
        await enter(background_tasks.running(fabric=fabric.run))
        publisher = await enter(slice_publisher.create_publisher(context).running())
        labels = NodeLabels(context.node, context.api)
        pool_updater = PoolUpdater(
            context.node,
            fabric,
            publisher,
            context.events,
            context.metrics,
            labels if settings.gpu_clique_label_enabled else None,
            is_host_managed=settings.is_host_managed,
        )

        prepared_claims = PreparedClaims(
            context.store, DomainClaimRecord, context.metrics.set_prepared
        )
        waits = DeviceWaitQueue(prepared_claims.wait_removed)
        claims = ClaimReader(context.api, waits, context.telemetry)
        domains = DomainLookup(context.api, waits)
        membership = NodeMembership(labels, prepared_claims, domains, waits)
        files = FileWorker(context.files)
        options = partial(_cdi_options, settings, context.state_dir.hook_path)
        specs = SpecFiles(settings.cdi_root, options)
        directories = DomainDirectories(settings.plugin_dir)
        preparer = _create_preparer(
            settings,
            context,
            domains,
            fabric,
            membership,
            prepared_claims,
            waits,
            devices,
            directories,
            specs,
            files,
            options,
        )
        builder = RecordBuilder(
            context.node,
            settings.feature_gates,
            claims,
            domains,
            fabric,
            devices,
            files,
            is_host_managed=settings.is_host_managed,
        )
        recovery = RecordRecovery(
            context.driver,
            context.node,
            context.store,
            prepared_claims,
            context.checkpoint,
            builder.build,
            context.events,
        )
        cleanup = PeriodicCleanup(
            prepared_claims,
            preparer.in_progress,
            recovery.done,
            specs,
            directories,
            ReferenceCheckpoint(settings.plugin_dir),
            files,
            None if settings.is_host_managed else membership,
        )
        if not settings.is_host_managed:
            watch = LabelWatch(context.node, context.api, membership, context.metrics.watch_restart)
            await enter(background_tasks.running(label_watch=watch.run))
            clique_files = CliqueFiles(
                lambda: fabric.status.gpus_clique, prepared_claims, directories, files
            )
            await enter(background_tasks.running(clique_files=clique_files.run))
        await enter(
            background_tasks.running(
                pool_updater=pool_updater.run,
                clique_label=pool_updater.run_clique_label,
                cleanup=cleanup.run,
                reference_checkpoint=cleanup.remove_reference_checkpoint,
            )
        )
        driver = Driver(
            prepared_claims=prepared_claims,
            recovery=recovery,
            wait_queue=waits,
            claim_reader=claims,
            preparer=preparer,
            publisher=publisher,
            describe_devices=partial(
                status_report.rows,
                fabric,
                prepared_claims,
                is_host_managed=settings.is_host_managed,
            ),
            readiness_checks={"fabric": partial(status_report.fabric_check, fabric)},
            restore_files=specs.restore,
            restore_errors=(OSError, CDIError),
        )
        await enter(wiring.serve(context, settings, driver))
        await stop.wait()


def _create_preparer(
    settings: Settings,
    context: PluginContext,
    domains: DomainLookup,
    fabric: FabricMonitor,
    membership: NodeMembership,
    prepared_claims: PreparedClaims[DomainClaimRecord],
    waits: DeviceWaitQueue,
    devices: ImexDevices,
    directories: DomainDirectories,
    specs: SpecFiles,
    files: FileWorker,
    options: partial[Options],
) -> Preparer:
    node, api, telemetry = context.node, context.api, context.telemetry
    gates, namespaces = settings.feature_gates, settings.managed_namespaces
    spans = DomainSpans(node, telemetry, context.clock, context.store)
    records = RecordWriter(node, prepared_claims, specs, files, telemetry)
    readiness = ReadinessWatch(
        node,
        api,
        namespaces,
        gates,
        prepared_claims,
        directories,
        files,
        waits,
        telemetry.metrics.watch_restart,
    )

    def dev_root() -> DevRoot:
        return DevRoot(options().target_dev_root)

    channel_specs = ChannelSpecs(devices, specs, dev_root, files)
    channels: ClaimStrategy
    if settings.is_host_managed:
        imex = HostImex(settings.container_driver_root, settings.imex_host_socket_path)
        channels = HostChannelStrategy(
            domains, records, fabric, imex, channel_specs, waits, telemetry
        )
    else:
        channels = DomainChannelStrategy(
            domains,
            records,
            membership,
            fabric,
            readiness,
            channel_specs,
            waits,
            spans,
            telemetry,
        )
    daemons = DomainDaemonStrategy(
        domains,
        PodAdmission(node, api, namespaces, waits),
        records,
        fabric,
        readiness,
        DaemonSpecs(devices, directories, specs, dev_root, files),
        waits,
        spans,
        telemetry,
    )
    return Preparer(
        node, gates, channels, daemons, telemetry, is_host_managed=settings.is_host_managed
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
    """Why NVML must be left alone: the GPU plugin's directory is beside this one's."""
    directory = settings.kubelet_plugins_directory_path / names.GPU_DRIVER
    release = await context.files.run(nvml_release.in_force, directory, context.clock.now())
    return None if release is None else nvml_release.error(release, context.node)


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
