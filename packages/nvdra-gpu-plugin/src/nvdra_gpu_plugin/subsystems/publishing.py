# SPDX-License-Identifier: Apache-2.0
"""What the plugin publishes: slices with devices and taints, and health for the kubelet."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from nvdra_api.gates import Feature, FeatureGates
from nvdra_runtime.http.probes import Check, PassingRemark
from nvdra_runtime.kubeletplugin import slice_publisher
from nvdra_runtime.kubeletplugin.plugin_context import PluginContext
from nvdra_runtime.kubeletplugin.status_report import Document
from nvdra_runtime.process import background_tasks
from nvdra_runtime.resourceslices.publisher import Publisher

from nvdra_gpu_plugin import status_report
from nvdra_gpu_plugin.devices.gpu_forms import Prebound
from nvdra_gpu_plugin.health.health_monitor import HealthMonitor
from nvdra_gpu_plugin.health.health_report import HealthReport
from nvdra_gpu_plugin.publishing import field_support, layout
from nvdra_gpu_plugin.publishing.device_taints import DeviceTaints
from nvdra_gpu_plugin.publishing.field_support import FieldSupport
from nvdra_gpu_plugin.publishing.gpu_report import GpuReport
from nvdra_gpu_plugin.publishing.offer import Offer
from nvdra_gpu_plugin.publishing.pool_updater import PoolUpdater
from nvdra_gpu_plugin.publishing.taint_support import TaintSupport
from nvdra_gpu_plugin.publishing.vfio_report import VfioReport
from nvdra_gpu_plugin.settings import Settings
from nvdra_gpu_plugin.subsystems import passthrough
from nvdra_gpu_plugin.subsystems.hardware import Hardware
from nvdra_gpu_plugin.subsystems.records import Records


@dataclass(frozen=True, slots=True)
class Publishing:
    """What is published.

    Attributes:
        publisher: Publishes the slices.
        health: What the kubelet learns of the devices; None without the gate.
        checks: Readiness checks, by name.
        describe_devices: The devices, for the command `status`.
    """

    publisher: Publisher
    health: HealthReport | None
    checks: Mapping[str, Check]
    describe_devices: Callable[[], list[Document]]


async def restored_health(
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


@asynccontextmanager
async def opened(
    context: PluginContext,
    settings: Settings,
    gates: FeatureGates,
    records: Records,
    hardware: Hardware,
    health: HealthMonitor | None,
) -> AsyncIterator[Publishing]:
    """Publish the node's GPUs during the block."""
    node, api, gpus = context.node, context.api, hardware.gpus
    support = TaintSupport(node)
    sharing = taints = report = vfio = None
    checks: dict[str, Check] = {}
    supports: list[FieldSupport] = []
    counters = _counters(gates, context)
    if counters is not None:
        supports.append(counters)
    if settings.shares is not None:
        sharing = settings.shares, FieldSupport(field_support.SHARES, node, context.events)
        supports.append(sharing[1])
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        observers = partial(_note_dropped, [support, *supports]), partial(_note_restart, supports)
        publisher = await enter(slice_publisher.create_publisher(context, *observers).running())
        if health is not None:
            taints = DeviceTaints(
                node, gpus, health, support, records.index, context.events, context.metrics
            )
            report = HealthReport(node, gpus, health, context.clock)
            checks["health"] = partial(_remark, taints)
        if counters is not None and gates.is_enabled(Feature.DYNAMIC_MIG):
            checks["partitions"] = partial(_partitions_remark, hardware, counters)
        if gates.is_enabled(Feature.PASSTHROUGH):
            vfio = VfioReport(node, context.events, context.metrics, hardware.busy, support)
            checks["passthrough"] = partial(_passthrough_remark, vfio, counters)
        if sharing is not None:
            checks["shares"] = partial(_remark, sharing[1])
        updater = PoolUpdater(
            partial(layout.pool, gates=gates, node=node),
            gpus,
            _offer(settings, gates, records, hardware),
            publisher,
            GpuReport(node, context.events, context.metrics, taints, vfio),
            taints,
            counters,
            sharing,
        )
        tasks = {"pool_updater": updater.run}
        if health is not None and report is not None:
            tasks["health"] = partial(health.run, hardware.monitor)
            tasks["health_report"] = report.run
        if vfio is not None:
            tasks["busy_gpus"] = partial(passthrough.watch, context, settings, hardware.busy)
        if health is not None or vfio is not None:
            tasks["taint_support"] = partial(support.run, api)
        await enter(background_tasks.running(**tasks))
        for fields in supports:
            await enter(background_tasks.running(field_support=partial(fields.run, api)))
        described = gpus, records.prepared_claims, taints, vfio
        yield Publishing(publisher, report, checks, partial(status_report.devices, *described))


def _counters(gates: FeatureGates, context: PluginContext) -> FieldSupport | None:
    """What the API server does with counters; None if none are published."""
    if gates.is_enabled(Feature.DYNAMIC_MIG):
        return FieldSupport(field_support.COUNTERS, context.node, context.events)
    if gates.is_enabled(Feature.PASSTHROUGH):
        return FieldSupport(field_support.COUNTERS_OF_FORMS, context.node, context.events)
    return None


def _offer(settings: Settings, gates: FeatureGates, records: Records, hardware: Hardware) -> Offer:
    passes_gpus = gates.is_enabled(Feature.PASSTHROUGH)
    prebound = Prebound(settings.passthrough_prebound) if passes_gpus else None
    return Offer(hardware.mode_refusals, records.prepared_claims, prebound)


def _note_dropped(supports: Sequence[TaintSupport | FieldSupport], fields: tuple[str, ...]) -> None:
    """Take note of what the API server has dropped from a slice."""
    for support in supports:
        support.note_dropped(fields)


def _note_restart(supports: Sequence[FieldSupport]) -> None:
    """Take note that the watch of the slices begins again."""
    for support in supports:
        support.note_restart()


def _remark(source: DeviceTaints | FieldSupport) -> PassingRemark | None:
    return source.remark


def _passthrough_remark(vfio: VfioReport, counters: FieldSupport | None) -> PassingRemark | None:
    """Why GPUs are not offered to virtual machines, or not kept apart as they should be."""
    remarks = (vfio.remark, None if counters is None else counters.remark)
    texts = [text for text in remarks if text]
    return PassingRemark("; ".join(texts)) if texts else None


def _partitions_remark(hardware: Hardware, counters: FieldSupport) -> PassingRemark | None:
    """Why MIG devices that can be made are not offered."""
    refusals = hardware.mode_refusals
    remarks = (counters.remark, hardware.gpus.partitions_problem, refusals.remark)
    texts = [text for text in remarks if text]
    return PassingRemark("; ".join(texts)) if texts else None
