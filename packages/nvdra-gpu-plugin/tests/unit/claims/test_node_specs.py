# SPDX-License-Identifier: Apache-2.0
"""No CDI spec is removed before it is known which ones prepared claims refer to."""

import asyncio
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nvdra_gpu_plugin.cdi.spec_files import SpecFiles
from nvdra_gpu_plugin.claims.node_specs import NodeSpecs
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.inventory import Inventory
from nvdra_gpu_plugin.devices.spec_generation import SpecGeneration
from nvdra_gpu_plugin.driver.nvml_sessions import NvmlSessions
from nvdra_gpu_plugin.hardware.device_monitor import DeviceMonitor
from nvdra_gpu_plugin.hardware.device_state import DeviceState, Snapshot
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.clock import SystemClock
from nvdra_runtime.process.worker import WorkerGroup
from nvdra_testing.polling import wait_until


async def test_specs_stay_until_the_records_are_as_complete_as_they_can_be(tmp_path: Path) -> None:
    old = tmp_path / "k8s.gpu.nvidia.com-device_old.yaml"
    old.touch()
    async with (
        RecordStore.open(tmp_path / "state.sqlite", "boot", SystemClock()) as store,
        WorkerGroup() as threads,
    ):
        updater: Any = None  # nothing inspects this node
        files = threads.start_worker("files")
        sessions = NvmlSessions(threads.start_worker("nvml"), lambda *_: None)
        monitor = DeviceMonitor(Host(), updater, SystemClock(), sessions, files, threads)
        spec: Any = SimpleNamespace(generation=SpecGeneration("new", {}))
        monitor.state, monitor.serial = DeviceState(Snapshot(Inventory(), spec)), 1
        prepared = PreparedClaims(store, GpuClaimRecord, lambda *_: None)
        specs = NodeSpecs(NodeGpus(monitor), SpecFiles(tmp_path, SystemClock()), files, prepared)
        recovery: Any = SimpleNamespace(done=asyncio.Event())
        async with background_tasks.running(cleanup=partial(specs.run_cleanup, recovery)):
            await specs.remove_unused()
            assert old.exists()
            recovery.done.set()
            await wait_until(lambda: not old.exists())
