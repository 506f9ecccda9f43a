# SPDX-License-Identifier: Apache-2.0
"""Operations that take a GPU from its driver for a virtual machine, and give it back.

What follows a kill differs from strike to strike: the kubelet's retry is not all that can come.
"""

import asyncio
import itertools
import json
from collections.abc import Sequence
from enum import Enum

import grpc
import pytest

from nvdra_testing.crash_campaigns import kubelet_calls, node_checks
from nvdra_testing.crash_campaigns.plugin_sandbox import PluginSandbox
from nvdra_testing.crash_campaigns.step_operations import (
    ChangingClaim,
    Hardware,
    OneClaim,
    PrepareWithSteps,
    StartAfterKilledPrepare,
    StartAfterReboot,
    UnprepareWithSteps,
)
from nvdra_testing.hardware import gpu_modes
from nvdra_testing.kubelet.checkpoint_file import CheckpointFile

FLAGS = ("--feature-gates=PassthroughSupport=true",)
GPU = 1
NATIVE, VFIO = "nvidia", "vfio-pci"
_BIND_MS = 1500
"""Long enough to be seen and ended in the middle."""


def drivers(sandbox: PluginSandbox) -> Hardware:
    """What claims of vfio devices change: drivers, overrides, clients, and what NVML lists."""
    assert sandbox.served is not None
    gpus = json.loads(sandbox.node.simctl("show", "--json"))["gpus"]
    devices = [sandbox.served.device(gpu["gpu"]) for gpu in gpus]
    links = [device / "driver" for device in devices]
    return {
        "drivers": [link.readlink().name if link.is_symlink() else None for link in links],
        "overrides": [(device / "driver_override").read_text().strip() for device in devices],
        "drained": [gpu["drained"] for gpu in gpus],
        "persistent": [gpu["persistence_mode"] for gpu in gpus],
        "listed": sandbox.node.nvidia_smi("-L").count("GPU "),
    }


AS_BOOTED: Hardware = {
    "drivers": [NATIVE] * 4,
    "overrides": ["(null)"] * 4,
    "drained": [False] * 4,
    "persistent": [True] * 4,
    "listed": 4,
}
VFIO_DEVICE = ChangingClaim(
    "a vfio device",
    f"gpu-vfio-{GPU}",
    {
        **AS_BOOTED,
        "drivers": [NATIVE, VFIO, NATIVE, NATIVE],
        "overrides": ["(null)", VFIO, "(null)", "(null)"],
        "drained": [False, True, False, False],
        "persistent": [True, False, True, True],
        "listed": 3,
    },
    as_installed=AS_BOOTED,
    look=drivers,
)


async def boot(sandbox: PluginSandbox) -> None:
    """Boot a node whose plugin does not run. A service has its GPUs in persistence mode."""
    await asyncio.to_thread(sandbox.reboot)
    gpu_modes.keep_settings(sandbox.node)


class Aftermath(Enum):
    """What follows the kill."""

    RETRY = "the kubelet repeats its call"
    UNPREPARE = "the pod is deleted, and the claim is unprepared"
    DELETION = "the claim is deleted, and the kubelet knows nothing of it"
    REBOOT = "the node is rebooted, and the kubelet repeats its call"


class VfioOperation(OneClaim):
    """Strikes have these aftermaths in turn."""

    def __init__(self, asked: ChangingClaim, aftermaths: Sequence[Aftermath] = ()) -> None:
        super().__init__(asked)
        self._turns = itertools.cycle(aftermaths or Aftermath)
        self._aftermaths: dict[PluginSandbox, Aftermath] = {}

    async def install(self, sandbox: PluginSandbox) -> None:
        """Have the node as booted: a reboot, as the files of its sysfs follow its hardware."""
        await boot(sandbox)

    async def arrange(self, sandbox: PluginSandbox) -> None:
        await super().arrange(sandbox)
        self._aftermaths[sandbox] = next(self._turns)

    async def end_interruption(self, sandbox: PluginSandbox) -> None:
        match self._aftermaths[sandbox]:
            case Aftermath.DELETION:
                CheckpointFile(sandbox.node.kubelet).write()
                await asyncio.to_thread(sandbox.delete_claim, self._calls[sandbox].claim)
            case Aftermath.REBOOT:
                await boot(sandbox)

    async def check_recovery(self, sandbox: PluginSandbox) -> str:
        aftermath = self._aftermaths[sandbox]
        if aftermath is Aftermath.DELETION:
            other = await asyncio.to_thread(sandbox.create_claim, f"gpu-{GPU}")
            await kubelet_calls.prepare(sandbox, other)
            assert set(node_checks.records(sandbox)) == {other.uid}
            await kubelet_calls.unprepare(sandbox, other)
            found = await self.check_as_installed(sandbox)
        elif aftermath is Aftermath.UNPREPARE:
            await kubelet_calls.unprepare(sandbox, self._calls[sandbox].claim)
            found = await self.check_as_installed(sandbox)
        else:
            found = await super().check_recovery(sandbox)
        return f"{aftermath.value}: {found}"


class PrepareOfVfio(VfioOperation, PrepareWithSteps):
    """The first claim after a start."""


class UnprepareOfVfio(VfioOperation, UnprepareWithSteps):
    """The only claim of a node."""


class StartAfterRebootWithVfio(VfioOperation, StartAfterReboot):
    """The start that binds the GPU of a claim that is held again."""

    async def reboot(self, sandbox: PluginSandbox) -> None:
        await boot(sandbox)


class StartAfterKilledPrepareOfVfio(VfioOperation, StartAfterKilledPrepare):
    """The start that gives a GPU back whose bind a killed plugin has left running."""

    async def kill_in_prepare(self, sandbox: PluginSandbox) -> None:
        assert sandbox.served is not None
        fault = ("pci", "fault", sandbox.served.address(GPU))
        sandbox.node.simctl(*fault, f"--driver={VFIO}", f"--bind-ms={_BIND_MS}")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._be_interrupted(sandbox))
            await sandbox.wait_until(
                lambda: drivers(sandbox)["drivers"][GPU] == VFIO, "the bind to begin"
            )
            await sandbox.kill()
        sandbox.node.simctl(*fault)

    async def _be_interrupted(self, sandbox: PluginSandbox) -> None:
        with pytest.raises(grpc.aio.AioRpcError):
            await kubelet_calls.prepare(sandbox, self._calls[sandbox].claim)
