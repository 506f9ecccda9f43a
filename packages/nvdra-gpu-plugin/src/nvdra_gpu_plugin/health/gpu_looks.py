# SPDX-License-Identifier: Apache-2.0
"""Looks at a GPU: asks NVML how it is now."""

import asyncio
from collections.abc import Mapping
from typing import Final

from nvdra_runtime.node import nvml_fields
from nvdra_runtime.node.nvml import FabricInfo, NvmlError
from nvdra_runtime.node.nvml_fields import Field
from nvdra_runtime.process import background_tasks
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.devices.gpu_loss import GpuLoss
from nvdra_gpu_plugin.hardware.gpu_probe import GpuProbe
from nvdra_gpu_plugin.hardware.probe_state import LOSSES, Status
from nvdra_gpu_plugin.health.failed_looks import FailedLook
from nvdra_gpu_plugin.health.gpu_health import (
    ACCESS_TIMEOUT,
    DEGRADED_BANDWIDTH,
    FABRIC_FAILED,
    INCORRECT_CONFIGURATION,
    REMAPPING_FAILED,
    REMAPPING_PENDING,
    ROUTE_UNHEALTHY,
    GpuHealth,
    Look,
)

LOG = logs.logger(__name__)

_TIMEOUT_S: Final = 5.0


async def look_at(probe: GpuProbe, health: GpuHealth, fabric: str | None) -> Look | FailedLook:
    """How a GPU is now.

    Args:
        probe: The GPU.
        health: What is known of it. One that is lost stays so while it answers with any error.
        fabric: What is known of its fabric; None to ask.
    """
    loss = probe.loss
    if loss is None and health.loss is not None and probe.status is Status.FAILING:
        loss = GpuLoss(health.loss.value)
    if loss is not None:
        return Look(loss=loss)
    deadline = asyncio.get_running_loop().time() + _TIMEOUT_S
    with background_tasks.contain("A GPU cannot be looked at"):
        try:
            if fabric is None:
                fabric = await _ask_fabric(probe, deadline)
            values = await probe.ask(
                probe.read, "field values", nvml_fields.read, deadline=deadline
            )
            return _look(values, fabric)
        except NvmlError as error:
            if error.code not in LOSSES:
                return FailedLook(str(error))
            probe.wake()
            return Look(loss=LOSSES[error.code])
        except TimeoutError:
            return FailedLook("it does not answer")
    return FailedLook("the plugin's log says why")


def _look(values: Mapping[Field, int], fabric: str) -> Look:
    is_failed, is_pending = (
        bool(values.get(field)) for field in (Field.REMAPPING_FAILED, Field.REMAPPING_PENDING)
    )
    return Look(
        recovery_action=values.get(Field.RECOVERY_ACTION),
        has_uncorrected_errors=bool(values.get(Field.UNCORRECTED_ERRORS)),
        fabric=fabric,
        remapping=REMAPPING_FAILED if is_failed else REMAPPING_PENDING if is_pending else "",
    )


async def _ask_fabric(probe: GpuProbe, deadline: float) -> str:
    """What is wrong with a GPU's fabric. One that cannot be asked for is no reason for a taint.

    Raises:
        NvmlError: The GPU is lost.
        TimeoutError: It does not answer.
    """
    try:
        info = await probe.ask(
            probe.read, "fabric", lambda nvml, gpu: nvml.fabric_info(gpu), deadline=deadline
        )
        return _fabric(info)
    except NvmlError as error:
        if error.code in LOSSES:
            raise
        LOG.v(4, "The fabric of a GPU is not known", error=str(error))
        return ""


def _fabric(info: FabricInfo | None) -> str:
    """What is wrong with a fabric; empty for nothing. It may still be coming up."""
    if info is None:
        return ""
    if info.is_failed:
        return FABRIC_FAILED
    if info.is_route_unhealthy:
        return ROUTE_UNHEALTHY
    if info.is_configured_incorrectly:
        return INCORRECT_CONFIGURATION
    if info.is_access_timeout:
        return ACCESS_TIMEOUT
    return DEGRADED_BANDWIDTH if info.is_bandwidth_degraded else ""
