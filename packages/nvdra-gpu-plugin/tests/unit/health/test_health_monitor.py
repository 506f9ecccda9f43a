# SPDX-License-Identifier: Apache-2.0
"""What the monitor makes of looks that NVML does not answer."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nvdra_gpu_plugin.health.health_monitor import HealthMonitor
from nvdra_runtime.node.nvml import DeviceHandle, FabricInfo, NvmlError, ReturnCode
from nvdra_runtime.process.worker import WorkerGroup
from nvdra_testing.hardware import simulated_nvml
from nvdra_testing.hardware.gpus import h100
from nvdra_testing.hardware.simulated_nvml import AnsweringNvml


class Clock:
    seconds = 100.0

    def now(self) -> datetime:
        return datetime(2026, 8, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.seconds


class FailingNvml(AnsweringNvml):
    """A library that does not say how a GPU is."""

    def fabric_info(self, gpu: DeviceHandle) -> FabricInfo | None:
        del gpu
        return None

    def call(self, function: str, device: str, *arguments: Any, is_observed: bool = True) -> Any:
        raise NvmlError(ReturnCode.UNKNOWN, function, device, "Unknown Error")


async def test_a_gpu_whose_looks_fail_for_a_minute_is_not_monitored(tmp_path: Path) -> None:
    gpu, clock, told = h100(3), Clock(), []
    async with WorkerGroup() as threads:
        session = simulated_nvml.session(FailingNvml(), gpu)
        worker = threads.start_worker("gpu-3")
        probe = simulated_nvml.described_probe(session, 0, gpu, clock, worker)
        files = threads.start_worker("files")
        health = HealthMonitor(tmp_path, frozenset(), "NoSchedule", files, clock)
        health.on_change(lambda: told.append(dict(health.unmonitored)))
        await health._look((probe,))
        clock.seconds += 59
        await health._look((probe,))
        assert (health.unmonitored, told) == ({}, [])
        clock.seconds += 1
        await health._look((probe,))
    (text,) = health.unmonitored.values()
    assert text.startswith("NVML does not say how it is: nvmlDeviceGetFieldValues")
    assert told == [{gpu.uuid: text}]
    (taint,) = health.taints(knows_none=True)[gpu.uuid]
    assert (taint.key, taint.effect) == ("gpu.nvidia.com/unmonitored", "None")
    assert health.taints(knows_none=False) == {}
