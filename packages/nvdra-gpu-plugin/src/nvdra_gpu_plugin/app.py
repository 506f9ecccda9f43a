# SPDX-License-Identifier: Apache-2.0
"""Opens the parts of the GPU plugin, in this order, and serves the kubelet."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial

from nvdra_api.gates import UNAVAILABLE_FEATURES, Feature
from nvdra_cdi.errors import CDIError
from nvdra_runtime.kubeletplugin import plugin_context, wiring
from nvdra_runtime.kubeletplugin.plugin_context import Program
from nvdra_runtime.kubeletplugin.wiring import Driver
from nvdra_runtime.node.nvml_lock import SessionHold
from nvdra_runtime.settings import loader as process_settings
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.logs import ConfiguredLogging

from nvdra_gpu_plugin.__about__ import __version__
from nvdra_gpu_plugin.hardware.standby_session import StandbySession
from nvdra_gpu_plugin.settings import Settings
from nvdra_gpu_plugin.subsystems import claims, hardware, mps, passthrough, publishing, records

PROGRAM = "nvdra-gpu-plugin"

LOG = logs.logger(__name__)


async def main(settings: Settings, logging: ConfiguredLogging, stop: asyncio.Event) -> None:
    """Serve the node until `stop` is set.

    ResourceSlices, CDI specs and prepared claims stay afterwards, so that pods keep running.
    """
    LOG.info("Starting", version=__version__, **process_settings.as_flags(settings))
    gates = settings.feature_gates.without(UNAVAILABLE_FEATURES)
    if unused := gates.without_effect():
        text = "Feature gates that are on have no effect in this version of the plugin"
        LOG.warning(text, gates=unused)
    if gates.is_enabled(Feature.CONSUMABLE_SHARES) and settings.shares is None:
        LOG.warning(
            "The feature gate ConsumableShares has no effect without --consumable-shares",
            consumable_shares=settings.consumable_shares,
        )
    reports_health = gates.is_enabled(Feature.HEALTH_CHECK)
    program = Program(PROGRAM, __version__, devices="GPUs", reports_health=reports_health)
    warm_up = partial(
        StandbySession,
        is_released=partial(hardware.is_released, settings.plugin_dir),
        hold=SessionHold(settings.plugin_dir),
        opens_gpus=not gates.is_enabled(Feature.DYNAMIC_MIG),
    )
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        context = await enter(
            plugin_context.open_context(program, settings, logging, stop, warm_up)
        )
        if context is None:
            return
        known = records.load(context)
        vfio = await passthrough.discovery(context, settings, gates, known)
        health = await publishing.restored_health(settings, gates, context)
        devices = await enter(hardware.opened(context, settings, gates, known, health, vfio, stop))
        slices = await enter(publishing.opened(context, settings, gates, known, devices, health))
        daemons = await enter(mps.opened(context, settings, gates, known, devices))
        served = await enter(claims.opened(context, settings, gates, known, devices, daemons))
        driver = Driver(
            prepared_claims=known.prepared_claims,
            recovery=served.recovery,
            wait_queue=known.waits,
            claim_reader=served.reader,
            preparer=served.preparer,
            publisher=slices.publisher,
            describe_devices=slices.describe_devices,
            readiness_checks={
                "driver": devices.driver_problem,
                "device-plugin": lambda: devices.device_plugin.remark,
                **slices.checks,
            },
            restore_files=served.restore_files,
            restore_errors=(OSError, CDIError),
            debug_actions={
                "nvml/release": devices.release.release,
                "nvml/resume": devices.release.resume,
            },
            health=slices.health,
        )
        await enter(wiring.serve(context, driver))
        await stop.wait()
