"""Claims whose devices are made: what their records say at each moment, and what is left after."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from nvdra_api.errors import DriverError, Reason
from nvdra_api.gates import FeatureGates
from nvdra_api.ids import ClaimUID, NodeName
from nvdra_api.resource.claims import ResourceClaim
from nvdra_api.v1beta1 import MigDeviceConfig
from nvdra_cdi.nvidia.options import Options
from nvdra_gpu_plugin.cdi import node_spec
from nvdra_gpu_plugin.cdi.claim_spec_files import ClaimSpecFiles
from nvdra_gpu_plugin.claims import plan
from nvdra_gpu_plugin.claims.claim_steps import ClaimSteps
from nvdra_gpu_plugin.devices.claim_index import GpuClaimIndex
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.inventory import Inventory
from nvdra_gpu_plugin.driver.nvml_sessions import NvmlSessions
from nvdra_gpu_plugin.hardware.device_monitor import DeviceMonitor
from nvdra_gpu_plugin.hardware.device_state import DeviceState, Snapshot
from nvdra_gpu_plugin.hardware.gpu_changes import GpuChanges
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus
from nvdra_runtime.claims import opaque_configs
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.nvml import ReturnCode
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
LARGE, SMALL, OTHER = "gpu-0-mig-3g40gb-9-4", "gpu-0-mig-1g10gb-19-0", "gpu-1-mig-3g40gb-9-4"
UID = ClaimUID("uid-1")
CREATE, CREATE_COMPUTE, DESTROY = (
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceDestroy",
)


class Clock(SystemClock):
    def now(self) -> datetime:
        return datetime(2026, 8, 1, tzinfo=UTC)


class Node:
    """Two GPUs that outlive the process; `opened` is the process."""

    def __init__(self, root: Path) -> None:
        self.root, self.cdi = root, root / "cdi"
        self.cdi.mkdir()
        self.tree = DriverTree(root / "host")
        self.tree.driver()
        self.tree.control_nodes()
        self.tree.file("/proc/devices", b"Character devices:\n195 nvidia\n505 nvidia-caps\n")
        for minor, gpu_instance in ((0, 2), (0, 7), (1, 2)):
            self.tree.node(f"/dev/nvidia{minor}", 195, minor)
            folder = f"/proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{gpu_instance}"
            for file in ("access", "ci0/access"):
                text = b"DeviceFileMinor: 21\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
                self.tree.file(f"{folder}/{file}", text)
        self.pynvml = DivisiblePynvml()
        self.gpus = tuple(DivisibleGpu(gpu.uuid) for gpu in GPUS)
        self.boot = "boot-1"

    @property
    def places(self) -> list[tuple[int, int, int]]:
        return [place for gpu in self.gpus for place in gpu.places]

    @property
    def specs(self) -> list[str]:
        return sorted(path.name for path in self.cdi.iterdir())

    def reboot(self) -> None:
        self.boot += "+"
        for gpu in self.gpus:
            gpu.instances.clear()
            gpu.mode = False
        for spec in self.cdi.iterdir():
            spec.unlink()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["Plugin"]:
        async with (
            RecordStore.open(self.root / "state.sqlite", self.boot, Clock()) as store,
            WorkerGroup() as threads,
        ):
            yield Plugin(self, store, threads)

    def is_clean(self) -> bool:
        return not (self.places or self.specs or any(gpu.mode for gpu in self.gpus))


class Plugin:
    def __init__(self, node: Node, store: RecordStore, threads: WorkerGroup) -> None:
        self.index = GpuClaimIndex()
        self.prepared = PreparedClaims(store, GpuClaimRecord, lambda *_: None, self.index)
        clock, files = Clock(), threads.start_worker("files")
        updater: Any = None  # nothing inspects this node
        sessions = NvmlSessions(threads.start_worker("nvml"), lambda *_: None)
        monitor = DeviceMonitor(Host(), updater, clock, sessions, files, threads)
        session = simulated_nvml.session(divisible_gpus.session(node.pynvml), *GPUS)
        monitor.probes = tuple(
            simulated_nvml.described_probe(
                session, at, gpu, clock, threads.start_worker(f"gpu-{at}"), node.gpus[at].handle
            )
            for at, gpu in enumerate(GPUS)
        )
        spec, _ = node_spec.build_node_spec(GPUS, Options(), {}, None, host=node.tree.host)
        self.snapshot = Snapshot(Inventory(GPUS), spec)
        monitor.state = DeviceState(self.snapshot)
        monitor.is_usable.set()
        specs = ClaimSpecFiles(node.cdi, Host(proc=node.root / "none"), node.tree.host)
        telemetry = Telemetry(clock, PluginMetrics(driver="d", node=NODE), TraceRecorder())
        self.steps = ClaimSteps(
            node.tree.host,
            NodeGpus(monitor),
            GpuChanges(monitor),
            specs,
            files,
            self.prepared,
            telemetry,
        )

    def plan(self, *devices: str) -> GpuClaimRecord:
        results = [
            {"request": "mig", "driver": "gpu.nvidia.com", "pool": NODE, "device": device}
            for device in devices
        ]
        claim = ResourceClaim.model_validate(
            {
                "metadata": {"namespace": "ml", "name": "claim-1", "uid": UID},
                "status": {"allocation": {"devices": {"results": results}}},
            }
        )
        configured = opaque_configs.resolve(
            claim, "gpu.nvidia.com", lambda _: MigDeviceConfig, FeatureGates()
        )
        generation = self.snapshot.spec.generation
        return plan.make(claim, configured, self.snapshot.inventory, generation, NODE)

    async def prepare(self, *devices: str, verify: Any = None) -> GpuClaimRecord:
        async def nothing() -> None:
            pass

        return await self.steps.prepare(self.plan(*devices), verify or nothing)

    async def unprepare(self) -> None:
        await self.steps.undo(self.prepared[UID])
        await self.prepared.remove(UID)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def reason_of(call: Any) -> Reason:
    with pytest.raises(DriverError) as caught:
        await call
    return caught.value.reason


async def test_a_claim_has_its_devices_its_spec_and_a_record_that_is_an_answer(node: Node) -> None:
    async with node.opened() as plugin:
        record = await plugin.prepare(LARGE, OTHER)
        assert plugin.prepared[UID] == record
        assert not plugin.prepared.is_started(UID)
        assert node.places == [(2, 4, 1), (2, 4, 1)]
        assert node.specs == ["k8s.gpu.nvidia.com-claim-device_uid-1.yaml"]
        assert [device.uuid for device in record.devices] == ["MIG-GPU-0-2-0", "MIG-GPU-1-2-0"]
        assert record.prepare_result().devices[0].cdi_ids == (
            f"k8s.gpu.nvidia.com/claim-device=uid-1-{LARGE}",
        )
        assert not record.is_foreign
        assert plugin.index.made_on(GPUS[0].uuid) == {(9, 4)}
        await plugin.unprepare()
        assert node.is_clean()
        assert plugin.index.made_on(GPUS[0].uuid) == frozenset()


async def test_the_record_is_started_on_the_disk_before_anything_is_done(node: Node) -> None:
    seen: list[list[tuple[str]]] = []
    switch = DivisiblePynvml._nvmlDeviceSetMigMode

    class Looking(DivisiblePynvml):
        def _nvmlDeviceSetMigMode(self, *arguments: Any) -> Any:
            with closing(sqlite3.connect(node.root / "state.sqlite")) as connection:
                seen.append(list(connection.execute("SELECT uid FROM started_records")))
                assert not list(connection.execute("SELECT uid FROM records"))
            return switch(self, *arguments)

    node.pynvml = Looking()
    async with node.opened() as plugin:
        await plugin.prepare(LARGE)
        assert not plugin.prepared.started
        await plugin.unprepare()
    assert seen == [[(UID,)], [(UID,)]], "mode on, and off again"


@pytest.mark.parametrize("function", [CREATE, CREATE_COMPUTE, "nvmlDeviceSetMigMode"])
async def test_a_failure_on_one_gpu_undoes_what_was_done_on_the_other(
    node: Node, function: str
) -> None:
    async with node.opened() as plugin:
        node.pynvml.failures[function] = [0, 999]
        assert await reason_of(plugin.prepare(LARGE, OTHER)) is Reason.DEVICE_UNHEALTHY
        assert node.is_clean()
        assert dict(plugin.prepared) == {}


async def test_a_claim_that_fails_its_last_check_or_its_spec_has_nothing(node: Node) -> None:
    async def fail() -> None:
        raise DriverError(Reason.DEVICE_NODE_MISSING, "gone")

    async with node.opened() as plugin:
        await reason_of(plugin.prepare(LARGE, verify=fail))
        assert node.is_clean()
        node.tree.remove("/proc/driver/nvidia/capabilities/gpu0/mig/gi2/access")
        assert await reason_of(plugin.prepare(LARGE)) is Reason.DEVICE_NODE_MISSING
        assert node.is_clean()
        assert dict(plugin.prepared) == {}


async def test_what_cannot_be_undone_keeps_its_place_and_is_finished_by_the_retry(
    node: Node,
) -> None:
    async with node.opened() as plugin:
        node.pynvml.failures[CREATE_COMPUTE] = [999]
        node.pynvml.failures[DESTROY] = [ReturnCode.IN_USE]
        await reason_of(plugin.prepare(LARGE))
        assert plugin.prepared.is_started(UID)
        assert plugin.steps.left_over == [plugin.prepared[UID]]
        (device,) = plugin.plan(LARGE).devices
        assert plugin.index.conflicting_claim(device, ClaimUID("other")) is not None
        await plugin.prepare(LARGE)
        assert not plugin.prepared.is_started(UID)
        assert node.pynvml.changes.count(CREATE) == 1
        await plugin.unprepare()
        assert node.is_clean()


async def test_another_allocation_of_the_claim_does_not_inherit_what_was_left(node: Node) -> None:
    async with node.opened() as plugin:
        node.pynvml.failures[CREATE_COMPUTE] = [999]
        node.pynvml.failures[DESTROY] = [ReturnCode.IN_USE]
        await reason_of(plugin.prepare(LARGE))
        await plugin.prepare(SMALL)
        assert node.places == [(0, 0, 1)]


async def test_a_successor_finds_what_to_undo(node: Node) -> None:
    async with node.opened() as plugin:
        node.pynvml.failures[CREATE_COMPUTE] = [999]
        node.pynvml.failures[DESTROY] = [ReturnCode.IN_USE]
        await reason_of(plugin.prepare(LARGE))
    async with node.opened() as plugin:
        (left,) = plugin.steps.left_over
        await plugin.steps.roll_back(left)
        assert node.is_clean()
        assert plugin.steps.left_over == []


async def test_a_destruction_that_was_interrupted_is_no_answer_any_more(node: Node) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(LARGE)
        node.pynvml.failures[DESTROY] = [ReturnCode.IN_USE]
        assert await reason_of(plugin.unprepare()) is Reason.DEVICE_IN_USE
    async with node.opened() as plugin:
        assert plugin.prepared.is_started(UID)
        assert node.places == [(2, 4, 0)]
        await plugin.unprepare()
        assert node.is_clean()


async def test_after_a_reboot_everything_is_made_again_at_its_place(node: Node) -> None:
    async with node.opened() as plugin:
        before = await plugin.prepare(LARGE, OTHER)
    node.reboot()
    async with node.opened() as plugin:
        again = await plugin.steps.restore(plugin.prepared[UID])
        assert again.prepare_result() == before.prepare_result()
        assert node.places == [(2, 4, 1), (2, 4, 1)]
        assert len(node.specs) == 1
        assert plugin.prepared[UID] == again
        changes = len(node.pynvml.changes)
        assert await plugin.steps.restore(again) == again
        assert len(node.pynvml.changes) == changes
        await plugin.unprepare()
        assert node.is_clean()


async def test_making_again_that_fails_is_repeated_and_takes_its_own_for_its_own(
    node: Node,
) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(LARGE)
    node.reboot()
    node.pynvml.failures[CREATE_COMPUTE] = [999]
    async with node.opened() as plugin:
        await reason_of(plugin.steps.restore(plugin.prepared[UID]))
        assert not plugin.prepared.is_started(UID)
    async with node.opened() as plugin:
        await plugin.steps.restore(plugin.prepared[UID])
        assert node.places == [(2, 4, 1)]


async def test_an_instance_of_this_boot_is_not_the_one_of_an_earlier_boot(node: Node) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(LARGE)
    node.reboot()
    node.gpus[0].add(2, 4)
    async with node.opened() as plugin:
        call = plugin.steps.restore(plugin.prepared[UID])
        assert await reason_of(call) is Reason.UNKNOWN_DEVICE
        await plugin.unprepare()
        assert node.places == [(2, 4, 1)]
        assert dict(plugin.prepared) == {}


async def test_a_device_that_somebody_destroyed_is_made_again(node: Node) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(LARGE)
        node.gpus[0].instances.clear()
        await plugin.steps.restore(plugin.prepared[UID])
        assert node.places == [(2, 4, 1)]


async def test_a_foreign_instance_is_neither_adopted_nor_destroyed(node: Node) -> None:
    node.gpus[0].add(2, 4)
    async with node.opened() as plugin:
        for _ in range(2):
            assert await reason_of(plugin.prepare(LARGE)) is Reason.UNKNOWN_DEVICE
            assert dict(plugin.prepared) == {}
        assert node.places == [(2, 4, 1)]


async def test_gpus_are_divided_side_by_side(node: Node) -> None:
    both = threading.Barrier(2, timeout=5)
    create = DivisiblePynvml._nvmlDeviceCreateGpuInstanceWithPlacement

    class Slow(DivisiblePynvml):
        def _nvmlDeviceCreateGpuInstanceWithPlacement(self, *arguments: Any) -> Any:
            both.wait()
            return create(self, *arguments)

    node.pynvml = Slow()
    async with node.opened() as plugin:
        async with asyncio.timeout(5):
            await plugin.prepare(LARGE, OTHER)
        assert len(node.places) == 2
