# SPDX-License-Identifier: Apache-2.0
"""What prepares, keeps and unprepares the claims of this node."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from nvdra_api.gates import FeatureGates
from nvdra_runtime.claims.claim_reader import ClaimReader
from nvdra_runtime.claims.engine import Engine
from nvdra_runtime.claims.record_recovery import RecordRecovery
from nvdra_runtime.kubeletplugin.plugin_context import PluginContext
from nvdra_runtime.process import background_tasks

from nvdra_gpu_plugin.cdi.claim_spec_files import ClaimSpecFiles
from nvdra_gpu_plugin.cdi.foreign_specs import ForeignSpecs
from nvdra_gpu_plugin.cdi.metadata_files import MetadataFiles
from nvdra_gpu_plugin.cdi.spec_files import SpecFiles
from nvdra_gpu_plugin.claims import claim_metadata
from nvdra_gpu_plugin.claims.changes.registry import ChangeKinds
from nvdra_gpu_plugin.claims.claim_metadata import ClaimMetadata
from nvdra_gpu_plugin.claims.claim_specs import ClaimSpecs
from nvdra_gpu_plugin.claims.claimed_gpus import ClaimedGpus
from nvdra_gpu_plugin.claims.foreign_claims import ForeignClaims
from nvdra_gpu_plugin.claims.node_specs import NodeSpecs
from nvdra_gpu_plugin.claims.plan import Planner
from nvdra_gpu_plugin.claims.preparer import Preparer
from nvdra_gpu_plugin.claims.record_builder import RecordBuilder
from nvdra_gpu_plugin.claims.recovery import ClaimRecovery
from nvdra_gpu_plugin.claims.status_writer import StatusWriter
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.hardware.gpu_changes import GpuChanges
from nvdra_gpu_plugin.hardware.verification import GpuVerifier
from nvdra_gpu_plugin.settings import Settings
from nvdra_gpu_plugin.subsystems import passthrough
from nvdra_gpu_plugin.subsystems.hardware import Hardware
from nvdra_gpu_plugin.subsystems.mps import Mps
from nvdra_gpu_plugin.subsystems.records import Records


@dataclass(frozen=True, slots=True)
class Claims:
    """What answers the kubelet.

    Attributes:
        reader: Reads claims from the API server.
        preparer: Prepares and unprepares them.
        recovery: Recovers records that were lost.
        restore_files: Writes their files again that were removed, on the thread for files.
    """

    reader: ClaimReader
    preparer: Preparer
    recovery: RecordRecovery[GpuClaimRecord]
    restore_files: Callable[[], None]


@asynccontextmanager
async def opened(
    context: PluginContext,
    settings: Settings,
    gates: FeatureGates,
    records: Records,
    hardware: Hardware,
    mps: Mps,
) -> AsyncIterator[Claims]:
    """Keep claims as their records say during the block."""
    node, files, telemetry = context.node, context.files, context.telemetry
    prepared_claims, gpus = records.prepared_claims, hardware.gpus
    spec_files = ClaimSpecFiles(settings.cdi_root, context.host)
    metadata_files = MetadataFiles(
        settings.plugin_dir, settings.cdi_root, claim_metadata.prepared_earlier(prepared_claims)
    )
    specs = NodeSpecs(gpus, hardware.spec_files, files, prepared_claims)
    claim_specs = ClaimSpecs(gpus, spec_files, files, telemetry)
    metadata = ClaimMetadata(gates, metadata_files, files, prepared_claims, telemetry)
    engine = _engine(context, settings, records, hardware, mps, (claim_specs, metadata))
    verifier = GpuVerifier(hardware.monitor)
    claimed = ClaimedGpus(
        node, gpus, verifier, hardware.gate, prepared_claims, records.index, telemetry
    )
    recovery = ClaimRecovery(
        node, gpus, claimed, engine, claim_specs, metadata, prepared_claims, context.events
    )
    foreign = ForeignClaims(
        gpus, ForeignSpecs(settings.cdi_root, settings.plugin_dir), files, prepared_claims
    )
    planner = Planner(node, gates, metadata.planned, settings.shares)
    preparer = Preparer(
        planner, claimed, specs, foreign, engine, recovery, records.waits, telemetry
    )
    reader = ClaimReader(context.api, records.waits, telemetry)
    builder = RecordBuilder(
        gpus, specs, metadata, reader, prepared_claims.boot_id, settings.plugin_dir, files
    )
    lost_records = RecordRecovery(
        context.driver,
        node,
        context.store,
        prepared_claims,
        context.checkpoint,
        builder.build,
        context.events,
    )
    restored = (hardware.spec_files, spec_files, metadata_files)
    async with background_tasks.running(
        replanner=recovery.run_planning,
        step_recovery=partial(recovery.run, lost_records),
        spec_cleanup=partial(specs.run_cleanup, lost_records),
        metadata=partial(metadata.run, lost_records),
        mps_collector=partial(mps.collect, lost_records),
        mps_users=mps.report_users,
        foreign_claims=partial(foreign.run, lost_records),
        status_writer=StatusWriter(context.api, prepared_claims).run,
    ):
        yield Claims(reader, preparer, lost_records, partial(_restore, restored))


def _engine(
    context: PluginContext,
    settings: Settings,
    records: Records,
    hardware: Hardware,
    mps: Mps,
    claim_files: tuple[ClaimSpecs, ClaimMetadata],
) -> Engine[GpuClaimRecord]:
    changes, prepared_claims = GpuChanges(hardware.monitor), records.prepared_claims
    kinds = ChangeKinds(
        context.host,
        changes,
        hardware.mode_refusals,
        records.index,
        prepared_claims.boot_id,
        mps.daemons,
        passthrough.binding(context, settings, hardware.monitor, hardware.busy),
        keeps_mig_mode=settings.keep_mig_mode,
    )
    return Engine(kinds, claim_files, prepared_claims, changes.is_absent, context.telemetry)


def _restore(files: tuple[SpecFiles, ClaimSpecFiles, MetadataFiles]) -> None:
    """Restore CDI specs and device metadata that were removed."""
    for kind in files:
        kind.restore()
