# SPDX-License-Identifier: Apache-2.0
"""Claims that meet at one GPU, and prepares that are repeated on a node that has changed."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import Any, get_origin, get_type_hints

import pytest
from nvdra_api.errors import DriverError, PermanentError, Reason
from nvdra_api.gates import FeatureGates
from nvdra_api.ids import GpuUUID, NodeName
from nvdra_api.resource.claims import ResourceClaim
from nvdra_gpu_plugin.cdi.spec_files import SpecFiles
from nvdra_gpu_plugin.claims import record_checks
from nvdra_gpu_plugin.claims.plan import Planner
from nvdra_gpu_plugin.claims.preparer import Preparer
from nvdra_gpu_plugin.devices.claim_index import GpuClaimIndex
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.inventory import Gpu, Inventory
from nvdra_gpu_plugin.devices.spec_generation import SpecGeneration
from nvdra_gpu_plugin.driver.nvml_sessions import NvmlSessions
from nvdra_gpu_plugin.hardware.device_monitor import DeviceMonitor
from nvdra_gpu_plugin.hardware.device_state import DeviceState, Snapshot
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.records import DeviceInUseError
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.process.worker import WorkerGroup
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder
from nvdra_testing.hardware import simulated_nvml
from nvdra_testing.hardware.gpus import h100
from nvdra_testing.hardware.simulated_nvml import AnsweringNvml

NODE = NodeName("node-a")
GENERATION = "0123456789"
SPEC = f"k8s.gpu.nvidia.com-device_{GENERATION}.yaml"


class Clock:
    def __init__(self) -> None:
        self.time = datetime(2026, 8, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return 0.0


def claim(number: int, *devices: str) -> ResourceClaim:
    results = [
        {"request": "gpu", "driver": "gpu.nvidia.com", "pool": NODE, "device": device}
        for device in devices
    ]
    return ResourceClaim.model_validate(
        {
            "metadata": {"namespace": "ml", "name": f"claim-{number}", "uid": f"uid-{number}"},
            "status": {"allocation": {"devices": {"results": results}}},
        }
    )


def assembled(kind: type[Any], parts: list[Any], named: Mapping[str, Any]) -> Any:
    """An object of what its constructor asks for: parts, or objects that are made of parts.

    So these tests do not change with each new collaborator of a collaborator.
    """
    arguments = {}
    for name, hint in get_type_hints(kind.__init__).items():
        if name in named:
            arguments[name] = named[name]
        elif name != "return" and not isinstance(hint, UnionType):  # which has a default
            wanted = get_origin(hint) or hint
            found = [part for part in parts if isinstance(part, wanted)]
            if not found:
                found.append(assembled(wanted, parts, named))
                parts += found
            arguments[name] = found[0]
    return kind(**arguments)


class Node:
    """A node with two GPUs, as the monitor has seen it."""

    def __init__(self, root: Path, store: RecordStore, threads: WorkerGroup, clock: Clock) -> None:
        self.clock = clock
        self.cdi = root
        self.answer: Callable[[str], None] = lambda _: None
        self.nvml = AnsweringNvml(lambda uuid: self.answer(uuid))
        files = threads.start_worker("files")
        sessions = NvmlSessions(threads.start_worker("nvml"), lambda *_: None)
        updater: Any = None  # nothing inspects this node
        self.monitor = DeviceMonitor(Host(), updater, clock, sessions, files, threads)
        self._workers = [threads.start_worker(f"gpu-{index}") for index in range(2)]
        self.see(h100(0), h100(1))
        index = GpuClaimIndex()
        self.prepared = PreparedClaims(store, GpuClaimRecord, lambda *_: None, index)
        telemetry = Telemetry(clock, PluginMetrics(driver="d", node=NODE), TraceRecorder())
        waits = DeviceWaitQueue(self.prepared.wait_removed)
        parts = (
            self.monitor,
            SpecFiles(root, clock),
            files,
            self.prepared,
            index,
            telemetry,
            waits,
        )
        named = {"node": NODE, "gates": FeatureGates(), "cdi_root": root, "plugin_dir": root}
        named |= {"prepared": list(self.prepared.values())}
        # No test here has anything to report, an MPS daemon, or shares.
        named |= dict.fromkeys(("events", "api", "settings", "kinds", "is_absent"))
        named |= {
            "claim_files": (),
            "planner": Planner(NODE, FeatureGates(), lambda record, *_: record),
        }
        self.preparer: Preparer = assembled(Preparer, list(parts), named)

    def see(self, *gpus: Gpu) -> None:
        """Have the monitor see these GPUs, whose spec is there."""
        ids = {gpu.name: f"k8s.gpu.nvidia.com/device={gpu.name}-{GENERATION}" for gpu in gpus}
        spec: Any = SimpleNamespace(
            generation=SpecGeneration(GENERATION, ids),
            missing_paths=lambda _: [],
            lacks_socket=lambda: False,
        )
        opened = simulated_nvml.session(self.nvml, *gpus)
        self.monitor.session.probes = tuple(
            simulated_nvml.described_probe(opened, at, gpu, self.clock, self._workers[at])
            for at, gpu in enumerate(gpus)
        )
        self.monitor.state = DeviceState(Snapshot(Inventory(gpus), spec))
        self.monitor.discovered.set()
        self.monitor.session.is_usable.set()

    async def prepare(self, wanted: ResourceClaim) -> Any:
        return await self.preparer.prepare(wanted, soon(), lambda _: None)


@asynccontextmanager
async def opened(root: Path, boot: str = "boot") -> AsyncIterator[Node]:
    (root / SPEC).touch()
    clock = Clock()
    async with (
        RecordStore.open(root / "state.sqlite", boot, clock) as store,
        WorkerGroup() as threads,
    ):
        yield Node(root, store, threads, clock)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with opened(tmp_path) as made:
        yield made


def soon() -> float:
    return asyncio.get_running_loop().time() + 10


async def refusal(call: Any) -> DriverError:
    with pytest.raises(DriverError) as caught:
        await call
    return caught.value


async def test_claims_that_want_one_gpu_while_it_is_asked_do_not_both_get_it(node: Node) -> None:
    """The GPU answers slowly, so that all of them have found it free by then."""
    may_answer = threading.Event()

    def wait(_: str) -> None:
        may_answer.wait(10)

    node.answer = wait
    claims = [claim(number, "gpu-0") for number in range(4)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_outcome(node.prepare(each))) for each in claims]
        await asyncio.sleep(0.05)
        may_answer.set()
    outcomes = [task.result() for task in tasks]
    refused = [each for each in outcomes if isinstance(each, DeviceInUseError)]
    (holder,) = node.prepared
    assert len(refused) == 3
    assert {each.holder.uid for each in refused} == {holder}


async def _outcome(call: Any) -> Any:
    try:
        return await call
    except DriverError as error:
        return error


async def test_a_refusal_says_who_holds_the_gpu_and_since_when(node: Node) -> None:
    await node.prepare(claim(1, "gpu-0"))
    prepared_at = node.clock.time
    node.clock.time += timedelta(hours=2)
    error = await refusal(node.prepare(claim(2, "gpu-1", "gpu-0")))
    assert isinstance(error, DeviceInUseError)
    assert error.since == prepared_at
    assert error.holder == node.prepared[claim(1).ref.uid]
    assert error.device == "gpu-0"
    assert error.device_keys == (h100(1).pci, h100(0).pci)
    assert set(node.prepared) == {"uid-1"}


async def test_a_gpu_is_asked_before_each_answer_also_a_repeated_one(node: Node) -> None:
    first = await node.prepare(claim(1, "gpu-1"))
    again = await node.preparer.prepare_again(node.prepared[claim(1).ref.uid], soon())
    assert again == first
    assert node.nvml.asked == ["GPU-1", "GPU-1"]


async def test_a_repeated_prepare_does_not_give_another_gpu_of_the_same_name(node: Node) -> None:
    await node.prepare(claim(1, "gpu-1"))
    node.see(h100(0), h100(1, uuid=GpuUUID("GPU-9")))
    record = node.prepared[claim(1).ref.uid]
    error = await refusal(node.preparer.prepare_again(record, soon()))
    assert isinstance(error, PermanentError)
    assert error.message.startswith("gpu-1 was GPU-1 when the claim was prepared")
    assert node.nvml.asked == ["GPU-1"], "the other GPU is not even asked"


async def test_a_claim_is_planned_again_if_the_node_changes_while_its_gpu_is_asked(
    node: Node,
) -> None:
    loop = asyncio.get_running_loop()
    is_replaced = threading.Event()

    def put_another_gpu_in_its_place() -> None:
        node.see(h100(0), h100(1, uuid=GpuUUID("GPU-9")))
        is_replaced.set()

    def replace_gpu(_: str) -> None:
        node.answer = lambda _: None
        loop.call_soon_threadsafe(put_another_gpu_in_its_place)
        is_replaced.wait(5)

    node.answer = replace_gpu
    await node.prepare(claim(1, "gpu-1"))
    (device,) = node.prepared[claim(1).ref.uid].devices
    assert device.uuid == "GPU-9"
    assert node.nvml.asked == ["GPU-1", "GPU-9"]


async def test_nothing_is_recorded_of_a_claim_whose_gpu_does_not_work(node: Node) -> None:
    def fail(_: str) -> None:
        raise ValueError("another GPU is in its place")

    node.answer = fail
    error = await refusal(node.prepare(claim(1, "gpu-1")))
    assert error.reason is Reason.DEVICE_UNHEALTHY
    assert dict(node.prepared) == {}


async def test_a_claim_holds_its_gpu_over_a_restart(node: Node, tmp_path: Path) -> None:
    await node.prepare(claim(1, "gpu-0"))
    async with RecordStore.open(tmp_path / "state.sqlite", "boot", node.clock) as store:
        index = GpuClaimIndex()
        again = PreparedClaims(store, GpuClaimRecord, lambda *_: None, index)
        held = node.prepared[claim(1).ref.uid]
        assert dict(again) == {held.uid: held}
        (device,) = held.devices
        assert index.conflicting_claim(device, claim(2).ref.uid) == held


async def test_a_record_that_cannot_be_planned_again_after_a_reboot_concerns_its_claim_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as before:
        await before.prepare(claim(1, "gpu-0"))
    plan = record_checks.planned_again

    def fail(record: GpuClaimRecord, *node: Any) -> GpuClaimRecord:
        if record.uid == claim(1).ref.uid:
            raise KeyError("gpu-0")
        return plan(record, *node)

    monkeypatch.setattr(record_checks, "planned_again", fail)
    async with opened(tmp_path, "the next boot") as now:
        await now.prepare(claim(2, "gpu-1"))
        error = await refusal(now.prepare(claim(3, "gpu-0")))
        assert isinstance(error, DeviceInUseError)
        assert error.holder.uid == claim(1).ref.uid
