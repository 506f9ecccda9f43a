# SPDX-License-Identifier: Apache-2.0
"""What passes GPUs to virtual machines."""

from pathlib import Path
from typing import Final

from nvdra_api.gates import Feature, FeatureGates
from nvdra_api.ids import PciAddress
from nvdra_runtime.kubeletplugin.plugin_context import PluginContext
from nvdra_runtime.node import nvml_lock

from nvdra_gpu_plugin.claims.changes.vfio_binding import VfioBindingKind, VfioHost
from nvdra_gpu_plugin.devices.gpu_forms import Prebound
from nvdra_gpu_plugin.hardware.device_monitor import DeviceMonitor
from nvdra_gpu_plugin.hardware.gpu_changes import GpuChanges
from nvdra_gpu_plugin.hardware.gpu_drain import GpuDrain
from nvdra_gpu_plugin.hardware.session_pause import SessionPause
from nvdra_gpu_plugin.passthrough import busy_gpus, vfio_modules
from nvdra_gpu_plugin.passthrough.binder import Binder
from nvdra_gpu_plugin.passthrough.busy_gpus import BusyGpus
from nvdra_gpu_plugin.passthrough.vfio_discovery import VfioDiscovery
from nvdra_gpu_plugin.settings import Settings
from nvdra_gpu_plugin.subsystems.records import Records

_OWN_PROC: Final = Path("/proc")


async def discovery(
    context: PluginContext, settings: Settings, gates: FeatureGates, records: Records
) -> VfioDiscovery | None:
    """What finds vfio devices; None without the gate.

    With the gate, programs of nvdra on this node give up NVML when a GPU is taken from the driver.
    """
    if not gates.is_enabled(Feature.PASSTHROUGH):
        return None
    found = VfioDiscovery(
        context.host,
        settings.passthrough_modules_root,
        vfio_modules.MODPROBE,
        settings.plugin_dir,
        records.prepared_claims.boot_id,
        records.index.bound,
        Prebound(settings.passthrough_prebound),
    )
    await context.files.run(nvml_lock.create, settings.plugin_dir)
    await context.files.run(found.read_kept)
    return found


async def watch(context: PluginContext, settings: Settings, busy: BusyGpus) -> None:
    """See who uses the GPUs that claims were refused. Run until cancelled."""
    worker = context.threads.start_worker("vfio-users")

    async def look(pci: PciAddress, former: str) -> str | None:
        return await worker.run(busy_gpus.user_of, context.host, _processes(settings), pci, former)

    await busy.run(look)


def binding(
    context: PluginContext, settings: Settings, monitor: DeviceMonitor, busy: BusyGpus
) -> VfioBindingKind:
    """What binds GPUs to vfio and gives them back, also those of claims when the gate is off."""
    vfio = VfioHost(
        context.host,
        _processes(settings),
        settings.passthrough_modules_root,
        vfio_modules.MODPROBE,
        Binder(context.host, context.clock),
        context.threads,
        context.clock,
    )
    pause = SessionPause(monitor, settings.plugin_dir)
    drain = GpuDrain(GpuChanges(monitor), monitor, context.host)
    return VfioBindingKind(vfio, pause, drain, busy, context.telemetry)


def _processes(settings: Settings) -> Path:
    """The procfs with the node's processes."""
    root = settings.passthrough_proc_root
    return root if root.is_dir() else _OWN_PROC
