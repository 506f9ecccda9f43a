# SPDX-License-Identifier: Apache-2.0
"""Creates and starts the parts of the GPU plugin, in this order."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from nvdra_api.gates import UNAVAILABLE_FEATURES, Feature, FeatureGates
from nvdra_api.ids import NodeName
from nvdra_cdi.errors import CDIError
from nvdra_cdi.nvidia import driver_root as driver_roots
from nvdra_cdi.nvidia.options import NEW_IN_1_20, Options
from nvdra_cdi.rooted_files import RootedFiles as CdiHost
from nvdra_runtime.claims.claim_reader import ClaimReader
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.claims.engine import Engine
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.record_recovery import RecordRecovery
from nvdra_runtime.http.probes import PassingRemark
from nvdra_runtime.kubeletplugin import nvml_release as node_release
from nvdra_runtime.kubeletplugin import plugin_context, slice_publisher, wiring
from nvdra_runtime.kubeletplugin.plugin_context import PluginContext, Program
from nvdra_runtime.kubeletplugin.wiring import Driver
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.clock import SystemClock
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.settings import loader as process_settings
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.logs import ConfiguredLogging

from nvdra_gpu_plugin import status_report
from nvdra_gpu_plugin.__about__ import __version__
from nvdra_gpu_plugin.cdi.claim_spec_files import ClaimSpecFiles
from nvdra_gpu_plugin.cdi.foreign_specs import ForeignSpecs
from nvdra_gpu_plugin.cdi.metadata_files import MetadataFiles
from nvdra_gpu_plugin.cdi.spec_files import SpecFiles
from nvdra_gpu_plugin.claims import claim_metadata, node_specs
from nvdra_gpu_plugin.claims.changes.registry import ChangeKinds
from nvdra_gpu_plugin.claims.claim_metadata import ClaimMetadata
from nvdra_gpu_plugin.claims.claim_specs import ClaimSpecs
from nvdra_gpu_plugin.claims.foreign_claims import ForeignClaims
from nvdra_gpu_plugin.claims.node_specs import NodeSpecs
from nvdra_gpu_plugin.claims.preparer import Preparer
from nvdra_gpu_plugin.claims.record_builder import RecordBuilder
from nvdra_gpu_plugin.claims.recovery import ClaimRecovery
from nvdra_gpu_plugin.claims.replanner import Replanner
from nvdra_gpu_plugin.claims.status_writer import StatusWriter
from nvdra_gpu_plugin.device_plugin.allocation_file import AllocationFile
from nvdra_gpu_plugin.device_plugin.detection import DevicePluginDetection
from nvdra_gpu_plugin.devices.claim_index import GpuClaimIndex
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.gpu_numbers import GpuNumbers
from nvdra_gpu_plugin.hardware import device_monitor
from nvdra_gpu_plugin.hardware.event_watcher import EventWatcher
from nvdra_gpu_plugin.hardware.gpu_changes import GpuChanges
from nvdra_gpu_plugin.hardware.mode_refusals import ModeRefusals
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus
from nvdra_gpu_plugin.hardware.standby_session import StandbySession
from nvdra_gpu_plugin.hardware.verification import GpuVerifier
from nvdra_gpu_plugin.health.health_monitor import HealthMonitor
from nvdra_gpu_plugin.health.health_report import HealthReport
from nvdra_gpu_plugin.mps import daemon_arguments
from nvdra_gpu_plugin.mps.daemons import MpsDaemons
from nvdra_gpu_plugin.mps.deployment import DaemonSettings
from nvdra_gpu_plugin.mps.deployment_collector import DeploymentCollector
from nvdra_gpu_plugin.mps.user_report import UserReport
from nvdra_gpu_plugin.nvml_release import nvml_release
from nvdra_gpu_plugin.nvml_release.nvml_release import NvmlRelease
from nvdra_gpu_plugin.nvml_release.prepare_gate import PrepareGate
from nvdra_gpu_plugin.publishing import field_support, pool_updater
from nvdra_gpu_plugin.publishing.device_taints import DeviceTaints
from nvdra_gpu_plugin.publishing.field_support import FieldSupport
from nvdra_gpu_plugin.publishing.pool_updater import PoolUpdater
from nvdra_gpu_plugin.publishing.taint_support import TaintSupport
from nvdra_gpu_plugin.settings import Settings

PROGRAM = "nvdra-gpu-plugin"

LOG = logs.logger(__name__)


async def main(settings: Settings, logging: ConfiguredLogging, stop: asyncio.Event) -> None:
    """Serve the node until `stop` is set.

    ResourceSlices, CDI specs and prepared claims stay afterwards, so that pods keep running.
    """
    LOG.info("Starting", version=__version__, **process_settings.as_flags(settings))
    gates = settings.feature_gates.without(UNAVAILABLE_FEATURES)
    if unused := gates.without_effect():
        LOG.warning(
            "Feature gates that are on have no effect in this version of the plugin", gates=unused
        )
    if gates.is_enabled(Feature.CONSUMABLE_SHARES) and settings.shares is None:
        LOG.warning(
            "The feature gate ConsumableShares has no effect without --consumable-shares",
            consumable_shares=settings.consumable_shares,
        )
    makes_partitions = gates.is_enabled(Feature.DYNAMIC_MIG)
    reports_health = gates.is_enabled(Feature.HEALTH_CHECK)
    program = Program(PROGRAM, __version__, devices="GPUs", reports_health=reports_health)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        warm_up = partial(
            StandbySession,
            is_released=partial(_is_released, settings.plugin_dir),
            opens_gpus=not makes_partitions,
        )
        context = await enter(
            plugin_context.open_context(program, settings, logging, stop, warm_up)
        )
        if context is None:
            return
        node, api, telemetry = context.node, context.api, context.telemetry
        claim_index = GpuClaimIndex()
        prepared_claims = PreparedClaims(
            context.store, GpuClaimRecord, context.metrics.set_prepared, claim_index
        )
        released = await context.files.run(
            nvml_release.left_by_earlier_process, settings.plugin_dir, context.clock.now()
        )
        spec_files = SpecFiles(settings.cdi_root, context.clock)
        await context.files.run(spec_files.open, node_specs.claims_names(prepared_claims))
        health = await _health_monitor(settings, gates, context)
        watcher = None
        if health is not None:
            watcher = EventWatcher(context.threads, health.report, health.report_unmonitored)
        numbers = GpuNumbers(claim_index.held_numbers, settings.plugin_dir, prepared_claims.boot_id)
        await context.files.run(numbers.read)
        monitor = await enter(
            device_monitor.running(
                context.host,
                partial(_cdi_options, settings, context.state_dir.hook_path),
                spec_files,
                context.record_nvml_call,
                context.clock,
                context.threads,
                context.files,
                is_released=released.release is not None,
                events=watcher,
                made_for_claims=claim_index.made_on,
                finds_partitions=makes_partitions,
                numbers=numbers,
            )
        )
        gpus, verifier = NodeGpus(monitor), GpuVerifier(monitor)
        support = TaintSupport(node)
        counters = sharing = None
        if makes_partitions:
            counters = FieldSupport(field_support.COUNTERS, node, context.events)
        if settings.shares is not None:
            sharing = settings.shares, FieldSupport(field_support.SHARES, node, context.events)
        supports = [each for each in (counters, sharing and sharing[1]) if each is not None]
        publisher = await enter(
            slice_publisher.create_publisher(
                context,
                partial(_note_dropped, [support, *supports]),
                partial(_note_restart, supports),
            ).running()
        )
        taints = report = None
        if health is not None:
            taints = DeviceTaints(
                node, gpus, health, support, claim_index, context.events, context.metrics
            )
            report = HealthReport(node, gpus, health, context.clock)
        mode_refusals = ModeRefusals(node, context.events)
        updater = PoolUpdater(
            node,
            gates,
            gpus,
            mode_refusals,
            publisher,
            context.events,
            context.metrics,
            taints,
            counters,
            sharing,
        )

        wait_queue = DeviceWaitQueue(prepared_claims.wait_removed)
        gate = PrepareGate(wait_queue)
        release = NvmlRelease(
            context, settings.plugin_dir, released, monitor, prepared_claims, gate, stop
        )
        claim_reader = ClaimReader(api, wait_queue, telemetry)
        specs = NodeSpecs(gpus, spec_files, context.files, prepared_claims)
        foreign_specs = ForeignSpecs(settings.cdi_root, settings.plugin_dir)
        foreign_claims = ForeignClaims(gpus, foreign_specs, context.files, prepared_claims)
        metadata_files = MetadataFiles(
            settings.plugin_dir,
            settings.cdi_root,
            claim_metadata.prepared_earlier(prepared_claims),
        )
        metadata = ClaimMetadata(gates, metadata_files, context.files, prepared_claims, telemetry)
        replanner = Replanner(gpus, prepared_claims, metadata)
        claim_specs = ClaimSpecFiles(settings.cdi_root, context.host)
        daemon_settings = mps_daemon_settings(settings, gates)
        removals = await enter(Worker("mps-removals"))
        collector = DeploymentCollector(
            api,
            daemon_settings,
            settings.plugin_dir,
            context.files,
            removals,
            prepared_claims,
            lists_at_start=gates.is_enabled(Feature.MPS),
        )
        daemons = MpsDaemons(
            api,
            daemon_settings,
            settings.plugin_dir,
            context.host,
            gpus,
            context.files,
            removals,
            telemetry,
        )
        gpu_changes = GpuChanges(monitor)
        kinds = ChangeKinds(
            context.host,
            gpu_changes,
            mode_refusals,
            claim_index,
            prepared_claims.boot_id,
            daemons,
            keeps_mig_mode=settings.keep_mig_mode,
        )
        engine = Engine(
            kinds,
            (ClaimSpecs(gpus, claim_specs, context.files, telemetry), metadata),
            prepared_claims,
            gpu_changes.is_absent,
            telemetry,
        )
        claim_recovery = ClaimRecovery(
            node,
            gpus,
            engine,
            claim_specs,
            context.files,
            prepared_claims,
            replanner,
            gate,
            context.events,
        )
        preparer = Preparer(
            node,
            gates,
            gpus,
            verifier,
            specs,
            metadata,
            foreign_claims,
            replanner,
            engine,
            claim_recovery,
            prepared_claims,
            claim_index,
            gate,
            wait_queue,
            telemetry,
            share_policy=settings.shares,
        )
        recovery = RecordRecovery(
            context.driver,
            node,
            context.store,
            prepared_claims,
            context.checkpoint,
            RecordBuilder(
                gpus,
                specs,
                metadata,
                claim_reader,
                prepared_claims.boot_id,
                settings.plugin_dir,
                context.files,
            ).build,
            context.events,
        )
        kubelet_root = settings.kubelet_plugins_directory_path.parent
        device_plugin = DevicePluginDetection(
            node, gpus, AllocationFile(kubelet_root), context.files, context.events
        )
        await enter(
            background_tasks.running(
                pool_updater=updater.run,
                device_plugin=device_plugin.run,
                replanner=replanner.run,
                step_recovery=partial(claim_recovery.run, recovery),
                spec_cleanup=partial(specs.run_cleanup, recovery),
                metadata=partial(metadata.run, recovery),
                mps_collector=partial(collector.run, daemons, recovery),
                mps_users=UserReport(prepared_claims, context.files, context.events).run,
                foreign_claims=partial(foreign_claims.run, recovery),
                nvml_release=release.run,
                status_writer=StatusWriter(api, prepared_claims).run,
            )
        )
        if health is not None and report is not None:
            await enter(
                background_tasks.running(
                    health=partial(health.run, monitor),
                    health_report=report.run,
                    taint_support=partial(support.run, api),
                )
            )
        for each in supports:
            await enter(background_tasks.running(field_support=partial(each.run, api)))
        driver = Driver(
            prepared_claims=prepared_claims,
            recovery=recovery,
            wait_queue=wait_queue,
            claim_reader=claim_reader,
            preparer=preparer,
            publisher=publisher,
            describe_devices=partial(status_report.devices, gpus, prepared_claims, taints),
            readiness_checks={
                "driver": partial(_driver_problem, gpus, release),
                "device-plugin": lambda: device_plugin.remark,
                **({} if taints is None else {"health": lambda: taints.remark}),
                **(
                    {}
                    if counters is None
                    else {"partitions": partial(_partitions_remark, gpus, counters, mode_refusals)}
                ),
                **({} if sharing is None else {"shares": lambda: sharing[1].remark}),
            },
            restore_files=partial(_restore_specs, spec_files, claim_specs, metadata_files),
            restore_errors=(OSError, CDIError),
            debug_actions={"nvml/release": release.release, "nvml/resume": release.resume},
            health=report,
        )
        await enter(wiring.serve(context, settings, driver))
        await stop.wait()


async def _health_monitor(
    settings: Settings, gates: FeatureGates, context: PluginContext
) -> HealthMonitor | None:
    """What an earlier process has known of the GPUs' health; None if the gate is off."""
    if not gates.is_enabled(Feature.HEALTH_CHECK):
        return None
    health = HealthMonitor(
        settings.plugin_dir,
        settings.ignored_xids,
        settings.device_taint_effect,
        context.files,
        context.clock,
    )
    await health.restore(context.host.boot_id())
    return health


def mps_daemon_settings(settings: Settings, gates: FeatureGates) -> DaemonSettings:
    """What the MPS control daemons of this node have in common."""
    return DaemonSettings(
        node=NodeName(settings.node_name),
        namespace=settings.namespace,
        image=settings.image_name,
        pull_policy=settings.image_pull_policy,
        pull_secrets=settings.pull_secrets,
        service_account=settings.service_account_name,
        priority_class=settings.mps_daemon_priority_class_name,
        requests=settings.mps_requests,
        limits=settings.mps_limits,
        grace_period_s=settings.mps_daemon_termination_grace_period_seconds,
        driver_root=settings.nvidia_driver_root,
        has_shell=daemon_arguments.has_shell(settings.container_driver_root),
        has_shm=(settings.container_driver_root / "dev/shm").exists(),
        feature_gates=gates.full_text(),
    )


def _restore_specs(
    spec_files: SpecFiles, claim_specs: ClaimSpecFiles, metadata_files: MetadataFiles
) -> None:
    """Restore CDI specs and device metadata that were removed, on the thread for files."""
    spec_files.restore()
    claim_specs.restore()
    metadata_files.restore()


def _note_dropped(supports: Sequence[TaintSupport | FieldSupport], fields: tuple[str, ...]) -> None:
    """Take note of what the API server has dropped from a slice."""
    for each in supports:
        each.note_dropped(fields)


def _note_restart(supports: Sequence[FieldSupport]) -> None:
    """Take note that the watch of the slices begins again."""
    for each in supports:
        each.note_restart()


def _is_released(plugin_dir: Path) -> bool:
    """Whether NVML must not be used on this node now."""
    return node_release.in_force(plugin_dir, SystemClock().now()) is not None


def _cdi_options(settings: Settings, hook_path: str) -> Options:
    """Where CDI generation looks for files, and which paths it writes for the host."""
    driver_root = str(settings.container_driver_root)
    return Options(
        driver_root=driver_root,
        target_driver_root=str(settings.nvidia_driver_root),
        dev_root=driver_roots.resolve_dev_root(CdiHost(), driver_root, str(settings.dev_root)),
        sys_root=str(settings.sys_root),
        proc_root=str(settings.proc_root),
        hook_path=hook_path,
        disabled_hooks=NEW_IN_1_20,
    )


def _partitions_remark(
    gpus: NodeGpus, counters: FieldSupport, mode_refusals: ModeRefusals
) -> PassingRemark | None:
    """Why MIG devices that can be made are not offered."""
    remarks = (counters.remark, gpus.partitions_problem, mode_refusals.remark)
    texts = [text for text in remarks if text]
    return PassingRemark("; ".join(texts)) if texts else None


def _driver_problem(gpus: NodeGpus, release: NvmlRelease) -> str | None:
    """Why no GPU can be used, or a remark: NVML is released, or is not; something is missing."""
    if release.remark is not None:
        return release.remark
    missing = pool_updater.NO_GPU if gpus.is_empty else ""
    if not missing and gpus.snapshot is not None:
        missing = gpus.snapshot.spec.programs_remark
    return gpus.problem or release.refusal or (PassingRemark(missing) if missing else None)
