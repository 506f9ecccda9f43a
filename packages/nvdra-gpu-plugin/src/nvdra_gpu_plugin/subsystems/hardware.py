# SPDX-License-Identifier: Apache-2.0
"""What the plugin knows of the node's GPUs, and when it must leave NVML alone."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nvdra_api.gates import Feature, FeatureGates
from nvdra_api.ids import GpuUUID
from nvdra_cdi.nvidia import driver_root as driver_roots
from nvdra_cdi.nvidia.options import NEW_IN_1_20, Options
from nvdra_cdi.rooted_files import RootedFiles as CdiHost
from nvdra_runtime.http.probes import PassingRemark
from nvdra_runtime.kubeletplugin import nvml_release as node_release
from nvdra_runtime.kubeletplugin.plugin_context import PluginContext
from nvdra_runtime.node.nvml_lock import SessionHold
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.clock import SystemClock

from nvdra_gpu_plugin.cdi.spec_files import SpecFiles
from nvdra_gpu_plugin.claims import node_specs
from nvdra_gpu_plugin.device_plugin.allocation_file import AllocationFile
from nvdra_gpu_plugin.device_plugin.detection import DevicePluginDetection
from nvdra_gpu_plugin.devices.gpu_numbers import GpuNumbers
from nvdra_gpu_plugin.hardware import device_monitor
from nvdra_gpu_plugin.hardware.device_monitor import DeviceMonitor
from nvdra_gpu_plugin.hardware.event_watcher import EventWatcher
from nvdra_gpu_plugin.hardware.mode_refusals import ModeRefusals
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus
from nvdra_gpu_plugin.health.health_monitor import HealthMonitor
from nvdra_gpu_plugin.nvml_release import nvml_release
from nvdra_gpu_plugin.nvml_release.nvml_release import NvmlRelease
from nvdra_gpu_plugin.nvml_release.prepare_gate import PrepareGate
from nvdra_gpu_plugin.passthrough.busy_gpus import BusyGpus
from nvdra_gpu_plugin.passthrough.vfio_discovery import VfioDiscovery
from nvdra_gpu_plugin.publishing import gpu_report
from nvdra_gpu_plugin.settings import Settings
from nvdra_gpu_plugin.subsystems.records import Records


@dataclass(frozen=True, slots=True)
class Hardware:
    """The node's GPUs.

    Attributes:
        monitor: Looks at them.
        gpus: What it has seen.
        spec_files: Their CDI specs.
        mode_refusals: Those whose MIG mode cannot be switched now.
        gate: Closed while NVML is released.
        release: Releases NVML for an administrator.
        device_plugin: Whether another device plugin hands out the same GPUs.
        busy: Those that claims of virtual machines were refused because processes use them.
    """

    monitor: DeviceMonitor
    gpus: NodeGpus
    spec_files: SpecFiles
    mode_refusals: ModeRefusals
    gate: PrepareGate
    release: NvmlRelease
    device_plugin: DevicePluginDetection
    busy: BusyGpus

    def driver_problem(self) -> str | None:
        """Why no GPU can be used, or a remark: NVML is (not) released; something is missing."""
        gpus, release = self.gpus, self.release
        if release.remark is not None:
            return release.remark
        if gpus.state.is_for_machines_only:
            return PassingRemark(f"GPUs are for virtual machines only: {gpus.problem}")
        missing = gpu_report.NO_GPU if gpus.is_empty else ""
        if not missing and gpus.snapshot is not None:
            missing = gpus.snapshot.spec.programs_remark
        return gpus.problem or release.refusal or (PassingRemark(missing) if missing else None)


@asynccontextmanager
async def opened(
    context: PluginContext,
    settings: Settings,
    gates: FeatureGates,
    records: Records,
    health: HealthMonitor | None,
    vfio: VfioDiscovery | None,
    stop: asyncio.Event,
) -> AsyncIterator[Hardware]:
    """Look at the node's GPUs during the block."""
    prepared_claims, files = records.prepared_claims, context.files
    left = await files.run(
        nvml_release.left_by_earlier_process, settings.plugin_dir, context.clock.now()
    )
    spec_files = SpecFiles(settings.cdi_root, context.clock)
    await files.run(spec_files.open, node_specs.claims_names(prepared_claims))
    watcher = None
    if health is not None:
        watcher = EventWatcher(context.threads, health.report, health.report_unmonitored)
    held = partial(_held_numbers, records, vfio)
    numbers = GpuNumbers(held, settings.plugin_dir, prepared_claims.boot_id)
    await files.run(numbers.read)
    monitoring = device_monitor.running(
        context.host,
        partial(_cdi_options, settings, context.state_dir.hook_path),
        spec_files,
        context.record_nvml_call,
        context.clock,
        context.threads,
        files,
        is_released=left.release is not None,
        events=watcher,
        made_for_claims=records.index.made_on,
        finds_partitions=gates.is_enabled(Feature.DYNAMIC_MIG),
        numbers=numbers,
        hold=SessionHold(settings.plugin_dir),
        vfio=vfio,
    )
    async with monitoring as monitor:
        gpus = NodeGpus(monitor)
        gate = PrepareGate(records.waits)
        release = NvmlRelease(
            context, settings.plugin_dir, left, monitor, prepared_claims, gate, stop
        )
        allocations = AllocationFile(settings.kubelet_plugins_directory_path.parent)
        device_plugin = DevicePluginDetection(
            context.node, gpus, allocations, files, context.events
        )
        refusals = ModeRefusals(context.node, context.events)
        async with background_tasks.running(
            device_plugin=device_plugin.run, nvml_release=release.run
        ):
            yield Hardware(
                monitor, gpus, spec_files, refusals, gate, release, device_plugin, BusyGpus()
            )


def _held_numbers(records: Records, vfio: VfioDiscovery | None) -> Mapping[GpuUUID, int]:
    """The numbers under which GPUs are held; a GPU comes back from vfio under its own."""
    known = {} if vfio is None else vfio.numbers()
    return {**known, **records.index.held_numbers()}


def is_released(plugin_dir: Path) -> bool:
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
