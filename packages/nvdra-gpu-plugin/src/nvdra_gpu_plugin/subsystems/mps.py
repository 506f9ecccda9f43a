# SPDX-License-Identifier: Apache-2.0
"""The MPS control daemons of this node's claims."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from nvdra_api.gates import Feature, FeatureGates
from nvdra_api.ids import NodeName
from nvdra_runtime.claims.record_recovery import RecordRecovery
from nvdra_runtime.kubeletplugin.plugin_context import PluginContext
from nvdra_runtime.process.worker import Worker

from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.mps import daemon_arguments
from nvdra_gpu_plugin.mps.daemons import MpsDaemons
from nvdra_gpu_plugin.mps.deployment import DaemonSettings
from nvdra_gpu_plugin.mps.deployment_collector import DeploymentCollector
from nvdra_gpu_plugin.mps.user_report import UserReport
from nvdra_gpu_plugin.settings import Settings
from nvdra_gpu_plugin.subsystems.hardware import Hardware
from nvdra_gpu_plugin.subsystems.records import Records


@dataclass(frozen=True, slots=True)
class Mps:
    """The daemons.

    Attributes:
        daemons: Starts and stops them.
        collect: A task: deletes what is left of daemons whose claims are gone.
        report_users: A task: reports users who wait for one another.
    """

    daemons: MpsDaemons
    collect: Callable[[RecordRecovery[GpuClaimRecord]], Awaitable[None]]
    report_users: Callable[[], Awaitable[None]]


@asynccontextmanager
async def opened(
    context: PluginContext,
    settings: Settings,
    gates: FeatureGates,
    records: Records,
    hardware: Hardware,
) -> AsyncIterator[Mps]:
    """Have a thread for the directories of daemons during the block."""
    common, api, files = daemon_settings(settings, gates), context.api, context.files
    async with Worker("mps-removals") as removals:
        daemons = MpsDaemons(
            api,
            common,
            settings.plugin_dir,
            context.host,
            hardware.gpus,
            files,
            removals,
            context.telemetry,
        )
        collector = DeploymentCollector(
            api,
            common,
            settings.plugin_dir,
            files,
            removals,
            records.prepared_claims,
            lists_at_start=gates.is_enabled(Feature.MPS),
        )
        users = UserReport(records.prepared_claims, files, context.events)
        yield Mps(daemons, partial(collector.run, daemons), users.run)


def daemon_settings(settings: Settings, gates: FeatureGates) -> DaemonSettings:
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
