"""What the failure of a claim says when its daemon's files cannot be used."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import pytest
from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import ClaimUID, DeviceName, GpuUUID, NodeName
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.steps import ShareByMps
from nvdra_gpu_plugin.mps.daemons import MpsDaemons
from nvdra_gpu_plugin.mps.deployment import DaemonSettings
from nvdra_runtime.node.host import Host
from nvdra_runtime.process.worker import Worker

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class BusyThread(Worker):
    """A worker that is not done with an earlier call when the deadline of the next one passes."""

    async def run(
        self, function: Callable[[*Ts], T], *arguments: *Ts, deadline: float | None = None
    ) -> T:
        raise TimeoutError


async def test_a_disk_that_does_not_respond_is_named_as_the_cause(tmp_path: Path) -> None:
    nobody: Any = None  # neither API server, GPUs nor telemetry are needed
    thread = BusyThread("files")
    settings = DaemonSettings(NodeName("node-a"), "nvdra-system")
    daemons = MpsDaemons(nobody, settings, tmp_path, Host(), nobody, thread, thread, nobody)
    gpu = DeviceName("gpu-0")
    step = ShareByMps(gpu=GpuUUID("GPU-0"), device=gpu, devices=(gpu,), directory=str(tmp_path))
    record = GpuClaimRecord(
        namespace="ml", name="c", uid=ClaimUID("u"), generation="", devices=(), steps=(step,)
    )
    with pytest.raises(RetryableError) as caught:
        await daemons.are_ready(record)
    assert caught.value.reason is Reason.MPS_NOT_READY
    assert "cannot be read or changed: the disk does not respond" in str(caught.value)
