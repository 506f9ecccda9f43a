# SPDX-License-Identifier: Apache-2.0
"""A node whose GPUs can be divided, and the parts of the GPU plugin that prepare claims on it.

The hardware outlives the plugin, so that a test can end it anywhere and start its successor. There
is no process: only what prepares claims, on NVML functions in memory.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nvdra_api.gates import FeatureGates
from nvdra_api.ids import ClaimUID, DeviceName, NodeName
from nvdra_api.resource.claims import ClaimRef, ResourceClaim
from nvdra_cdi.nvidia.options import Options
from nvdra_gpu_plugin.cdi import node_spec
from nvdra_gpu_plugin.cdi.claim_spec_files import ClaimSpecFiles
from nvdra_gpu_plugin.cdi.foreign_specs import ForeignSpecs
from nvdra_gpu_plugin.cdi.metadata_files import MetadataFiles
from nvdra_gpu_plugin.cdi.node_spec import NodeSpec
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
from nvdra_gpu_plugin.claims.recovery import ClaimRecovery
from nvdra_gpu_plugin.devices.claim_index import GpuClaimIndex
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.inventory import Inventory
from nvdra_gpu_plugin.driver.nvml_sessions import NvmlSessions
from nvdra_gpu_plugin.hardware.device_monitor import DeviceMonitor
from nvdra_gpu_plugin.hardware.device_state import DeviceState, Snapshot
from nvdra_gpu_plugin.hardware.gpu_changes import GpuChanges
from nvdra_gpu_plugin.hardware.mode_refusals import ModeRefusals
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus
from nvdra_gpu_plugin.hardware.verification import GpuVerifier
from nvdra_gpu_plugin.mps.daemons import MpsDaemons
from nvdra_gpu_plugin.mps.deployment import DaemonSettings
from nvdra_gpu_plugin.nvml_release.prepare_gate import PrepareGate
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.claims.engine import Engine
from nvdra_runtime.claims.prepare_result import PrepareResult
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.process.clock import SystemClock
from nvdra_runtime.process.worker import WorkerGroup
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder

from nvdra_testing.hardware import divisible_gpus, simulated_nvml
from nvdra_testing.hardware.divisible_gpus import DivisibleGpu, DivisiblePynvml
from nvdra_testing.hardware.driver_tree import DriverTree
from nvdra_testing.hardware.gpus import divisible

NODE = NodeName("node-a")
GPUS = (divisible(0, (9, 4), (19, 0)), divisible(1, (9, 4), (19, 0)))
"""Two H100. A device of four memory slices can be made on each, and one of one slice."""

_CAPABILITY = b"DeviceFileMinor: 21\nDeviceFileMode: 292\nDeviceFileModify: 1\n"


class _Clock(SystemClock):
    def now(self) -> datetime:
        """Always the same time."""
        return datetime(2026, 8, 1, tzinfo=UTC)


class _CompleteSpec(NodeSpec):
    """Its files are those of a tree, and all there."""

    def missing_paths(self, device: DeviceName) -> list[str]:
        """None."""
        del device
        return []


class DivisibleNode:
    """The hardware, and what is on the disk.

    Attributes:
        cdi: The directory of CDI specs.
        tree: The driver's files.
        pynvml: NVML's functions.
        gpus: The GPUs.
        boot: The ID of the boot.
        gates: The plugin's feature gates.
    """

    def __init__(self, root: Path, gates: FeatureGates | None = None) -> None:
        self.gates = gates or FeatureGates()
        self.root, self.cdi = root, root / "cdi"
        self.cdi.mkdir()
        self.tree = DriverTree(root / "host")
        self.tree.driver()
        self.tree.control_nodes()
        self.tree.file("/proc/devices", b"Character devices:\n195 nvidia\n505 nvidia-caps\n")
        for minor, gpu_instance in ((0, 2), (0, 7), (1, 2), (1, 7)):
            self.tree.node(f"/dev/nvidia{minor}", 195, minor)
            folder = f"/proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{gpu_instance}"
            for file in ("access", "ci0/access"):
                self.tree.file(f"{folder}/{file}", _CAPABILITY)
        self.pynvml = DivisiblePynvml()
        self.gpus = tuple(DivisibleGpu(gpu.uuid) for gpu in GPUS)
        self.boot = "boot-1"

    @property
    def places(self) -> list[tuple[int, int, int]]:
        """The GPU instances of all GPUs, as `DivisibleGpu.places`."""
        return [place for gpu in self.gpus for place in gpu.places]

    @property
    def specs(self) -> list[str]:
        """The CDI specs of claims."""
        return sorted(path.name for path in self.cdi.glob("*claim-device*"))

    def reboot(self) -> None:
        """Lose everything but the disk."""
        self.boot += "+"
        for gpu in self.gpus:
            gpu.instances.clear()
            gpu.mode = False
        for spec in self.cdi.iterdir():
            spec.unlink()

    def is_clean(self) -> bool:
        """Whether nothing is left of claims, but records."""
        return not (self.places or self.specs or any(gpu.mode for gpu in self.gpus))

    @asynccontextmanager
    async def opened(self, *, keeps_mig_mode: bool = False) -> AsyncIterator["Plugin"]:
        """The plugin, until the block ends."""
        async with (
            RecordStore.open(self.root / "state.sqlite", self.boot, _Clock()) as store,
            WorkerGroup() as threads,
        ):
            yield Plugin(self, store, threads, keeps_mig_mode=keeps_mig_mode)


class Plugin:
    """What prepares claims.

    Attributes:
        prepared: The records.
        index: Their index.
        snapshot: The GPUs as the plugin knows them.
        reported: The texts of Events of the Node.
        told: Those of claims and their pods.
        mode_refusals: The GPUs whose MIG mode could not be switched.
    """

    def __init__(
        self,
        node: DivisibleNode,
        store: RecordStore,
        threads: WorkerGroup,
        *,
        keeps_mig_mode: bool = False,
    ) -> None:
        self.index = GpuClaimIndex()
        self.prepared = PreparedClaims(store, GpuClaimRecord, lambda *_: None, self.index)
        self.reported: list[str] = []
        self.told: list[str] = []
        clock, files = _Clock(), threads.start_worker("files")
        updater: Any = None  # nothing inspects this node
        sessions = NvmlSessions(threads.start_worker("nvml"), lambda *_: None)
        self.monitor = DeviceMonitor(Host(), updater, clock, sessions, files, threads)
        session = simulated_nvml.session(divisible_gpus.session(node.pynvml), *GPUS)
        self.monitor.session.probes = tuple(
            simulated_nvml.described_probe(
                session, at, gpu, clock, threads.start_worker(f"gpu-{at}"), node.gpus[at].handle
            )
            for at, gpu in enumerate(GPUS)
        )
        spec, _ = node_spec.build_node_spec(GPUS, Options(), {}, None, host=node.tree.host)
        parts = {each.name: getattr(spec, each.name) for each in fields(spec)}
        self.snapshot = Snapshot(Inventory(GPUS), _CompleteSpec(**parts))
        self.monitor.state = DeviceState(self.snapshot)
        self.monitor.discovered.set()
        self.monitor.session.is_usable.set()
        gpus = NodeGpus(self.monitor)
        specs = ClaimSpecFiles(node.cdi, Host(proc=node.root / "none"), node.tree.host)
        telemetry = Telemetry(clock, PluginMetrics(driver="d", node=NODE), TraceRecorder())
        earlier = claim_metadata.prepared_earlier(self.prepared)
        self.metadata = metadata = ClaimMetadata(
            node.gates,
            MetadataFiles(node.root, node.cdi, earlier),
            files,
            self.prepared,
            telemetry,
        )
        nobody: Any = None  # claims of this node have no MPS daemons
        settings = DaemonSettings(NODE, "nvdra-system")
        daemons = MpsDaemons(nobody, settings, node.root, Host(), gpus, files, files, telemetry)
        events: Any = self  # `emit` and `emit_for_claim` are all that is needed
        self.mode_refusals = ModeRefusals(NODE, events)
        gpu_changes = GpuChanges(self.monitor)
        kinds = ChangeKinds(
            Host(),
            gpu_changes,
            self.mode_refusals,
            self.index,
            self.prepared.boot_id,
            daemons,
            nobody,
            keeps_mig_mode=keeps_mig_mode,
        )
        claim_specs = ClaimSpecs(gpus, specs, files, telemetry)
        self.engine = Engine(
            kinds, (claim_specs, metadata), self.prepared, gpu_changes.is_absent, telemetry
        )
        waits = DeviceWaitQueue(self.prepared.wait_removed)
        self.gate = PrepareGate(waits)
        verifier = GpuVerifier(self.monitor)
        claimed = ClaimedGpus(NODE, gpus, verifier, self.gate, self.prepared, self.index, telemetry)
        self.recovery = ClaimRecovery(
            NODE, gpus, claimed, self.engine, claim_specs, metadata, self.prepared, events
        )
        foreign = ForeignClaims(gpus, ForeignSpecs(node.cdi, node.root), files, self.prepared)
        self.preparer = Preparer(
            Planner(NODE, node.gates, metadata.planned),
            claimed,
            NodeSpecs(gpus, SpecFiles(node.cdi, clock), files, self.prepared),
            foreign,
            self.engine,
            self.recovery,
            waits,
            telemetry,
        )

    def emit(self, objects: object, kind: str, reason: str, text: str, about: str = "") -> None:
        """As `EventRecorder.emit`."""
        del objects, kind, about
        self.reported.append(f"{reason}: {text}")

    def emit_for_claim(
        self, ref: ClaimRef, claim: object, kind: str, reason: str, text: str
    ) -> None:
        """As `EventRecorder.emit_for_claim`."""
        del claim, kind
        self.told.append(f"{ref.uid}: {reason}: {text}")

    async def prepare(
        self, *devices: str, uid: str = "uid-1", is_admin: bool = False
    ) -> PrepareResult:
        """Prepare a claim that has these devices, as for a call of the kubelet."""
        claim_uid = ClaimUID(uid)
        if claim_uid in self.prepared and not self.prepared.is_started(claim_uid):
            return await self.preparer.prepare_again(self.prepared[claim_uid], _soon())
        claim = allocated(uid, *devices, is_admin=is_admin)
        return await self.preparer.prepare(claim, _soon(), lambda _: None)

    async def unprepare(self, uid: str = "uid-1") -> None:
        """Unprepare a claim, as for a call of the kubelet."""
        await self.preparer.unprepare(self.prepared[ClaimUID(uid)], _soon())


def allocated(uid: str, *devices: str, is_admin: bool = False) -> ResourceClaim:
    """A claim that these devices of the node are allocated to."""
    result = {
        "request": "mig",
        "driver": "gpu.nvidia.com",
        "pool": NODE,
        "adminAccess": is_admin or None,
    }
    results = [{**result, "device": device} for device in devices]
    return ResourceClaim.model_validate(
        {
            "metadata": {"namespace": "ml", "name": uid.replace("uid", "claim"), "uid": uid},
            "status": {"allocation": {"devices": {"results": results}}},
        }
    )


def _soon() -> float:
    return asyncio.get_running_loop().time() + 10
