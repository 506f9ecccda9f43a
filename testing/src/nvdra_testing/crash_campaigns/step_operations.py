# SPDX-License-Identifier: Apache-2.0
"""Operations that change hardware: MIG mode, MIG devices, GPUs shared by time or by MPS.

Each strike begins on hardware as it was installed, and must end with it. Calls on the simulated
hardware's own files are no points: a kill lets the kernel finish what a call of NVML has begun.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import grpc
from nvdra_api.resource.claims import ClaimRef
from nvdra_gpu_plugin.devices import mps_layout

from nvdra_testing.crash_campaigns import kubelet_calls, node_checks
from nvdra_testing.crash_campaigns.kubelet_calls import InterruptedCall
from nvdra_testing.crash_campaigns.plugin_operations import Operation, check_prepared
from nvdra_testing.crash_campaigns.plugin_sandbox import PluginSandbox
from nvdra_testing.hardware import driver_installation, gpu_modes
from nvdra_testing.node import mps_pods, plugin
from nvdra_testing.node.mps_pods import MpsPods

FLAGS = (
    "--feature-gates=DynamicMIG=true,TimeSlicingSettings=true,MPSSupport=true",
    *mps_pods.FLAGS,
)
FREE = ("gpu-0", "gpu-1")
"""What can be prepared again at the end."""


Hardware = Mapping[str, Any]
"""What claims change of a node, as an administrator sees it."""

AS_INSTALLED: Hardware = {
    "instances": [],
    "MIG mode": False,
    "time slice": "Default",
    "is exclusive": False,
    "daemons": 0,
}


def hardware(sandbox: PluginSandbox) -> Hardware:
    """What claims change of whole GPUs: instances of all, settings of two, daemons."""
    node = sandbox.node
    return {
        "instances": gpu_modes.gpu_instances(node),
        "MIG mode": gpu_modes.is_in_mig_mode(node, 0),
        "time slice": gpu_modes.time_slice(node, 1),
        "is exclusive": gpu_modes.is_exclusive(node, 1),
        "daemons": len(MpsPods(sandbox.server, node).running()),
    }


@dataclass(frozen=True)
class ChangingClaim:
    """A claim whose prepare changes hardware.

    Attributes:
        name: What it asks for.
        device: The device that is allocated to it.
        changed: What `look` finds while it is prepared.
        config: The entries of its allocation's config.
        killed_in: A fault rule that kills the plugin when its prepare has changed something.
        is_divided: Whether its GPU is in MIG mode before, with no instances.
        as_installed: What `look` finds before and after it.
        look: Reads the node's hardware.
    """

    name: str
    device: str
    changed: Hardware
    config: Sequence[Mapping[str, Any]] = ()
    killed_in: Sequence[str] = ()
    is_divided: bool = False
    as_installed: Hardware = field(default_factory=lambda: AS_INSTALLED)
    look: Callable[[PluginSandbox], Hardware] = hardware

    def create(self, sandbox: PluginSandbox) -> ClaimRef:
        """Create the claim in the API server."""
        return plugin.create_allocated_claim(
            sandbox.server, sandbox.node.name, [self.device], config=self.config
        )


MIG_DEVICE = ChangingClaim(
    "a MIG device",
    "gpu-0-mig-1g10gb-19-0",
    {**AS_INSTALLED, "instances": [(0, "1g.10gb", 0)], "MIG mode": True},
    killed_in=("nvmlGpuInstanceCreateComputeInstance", "--abort"),
)
SHARED_GPU = ChangingClaim(
    "a GPU shared by time",
    "gpu-1",
    {**AS_INSTALLED, "time slice": "Long"},
    plugin.shared_by_time("Long"),
    # A GPU is verified before its time slice is set and after it.
    killed_in=("nvmlDeviceGetMemoryInfo", "--gpu=1", "--abort", "--after-calls=1"),
)
GPU_WITH_DAEMON = ChangingClaim(
    "a GPU shared by MPS",
    "gpu-1",
    {**AS_INSTALLED, "is exclusive": True, "daemons": 1},
    plugin.shared_by_mps(),
    killed_in=("nvmlDeviceSetComputeMode", "--abort", "--do-work"),
)
MIG_DEVICE_WITH_DAEMON = ChangingClaim(
    "a MIG device shared by MPS",
    MIG_DEVICE.device,
    {**MIG_DEVICE.changed, "daemons": 1},
    plugin.shared_by_mps("MigDeviceConfig"),
)
GPU_IN_MIG_MODE = ChangingClaim("a whole GPU in MIG mode", "gpu-0", AS_INSTALLED, is_divided=True)
"""Its prepare switches MIG mode off, and its unprepare leaves it so."""


class OneClaim(Operation):
    """What the operations have in common: a clean node, and one claim."""

    name: str
    is_start = False

    def __init__(self, asked: ChangingClaim) -> None:
        self.name = f"{self.name} {asked.name}"
        self._asked = asked
        self._before = asked.as_installed
        if asked.is_divided:
            self._before = {**asked.as_installed, "MIG mode": True}
        self._calls: dict[PluginSandbox, InterruptedCall] = {}

    async def install(self, sandbox: PluginSandbox) -> None:
        """Have the hardware of a node, whose plugin does not run, as it was installed."""
        await asyncio.to_thread(driver_installation.install_driver, sandbox.node)

    async def prepare_sandbox(self, sandbox: PluginSandbox) -> None:
        await self._install_and_start(sandbox)
        await sandbox.stop()

    async def _install_and_start(self, sandbox: PluginSandbox) -> None:
        await sandbox.kill()
        await self.install(sandbox)
        await node_checks.start_on_clean_node(sandbox)

    async def arrange(self, sandbox: PluginSandbox) -> None:
        await self._install_and_start(sandbox)
        if self._asked.is_divided:
            await asyncio.to_thread(sandbox.node.nvidia_smi, "-i", "0", "-mig", "1")
        self._calls[sandbox] = InterruptedCall(self._asked.create(sandbox))

    def check_interrupted(self, sandbox: PluginSandbox) -> None:
        """Hardware that was changed for a claim has a record, without which it stays so."""
        claim = self._calls[sandbox].claim
        known = node_checks.records(sandbox).keys() | node_checks.started_claims(sandbox)
        is_changed = self._asked.look(sandbox) not in (self._asked.as_installed, self._before)
        assert claim.uid in known or not is_changed, "changed hardware of a claim without a record"

    async def check_recovery(self, sandbox: PluginSandbox) -> str:
        call = self._calls[sandbox]
        retried = await call.prepare_again(sandbox)
        await check_prepared(sandbox, call.claim, self._asked.device)
        found = self._asked.look(sandbox)
        assert found == self._asked.changed, f"prepared, and the node has {found}"
        await kubelet_calls.unprepare(sandbox, call.claim)
        return f"{retried}; " + await self.check_as_installed(sandbox)

    async def check_as_installed(self, sandbox: PluginSandbox) -> str:
        """Check that nothing is prepared any more, and that the hardware is as it was."""
        await node_checks.check_nothing_prepared(sandbox, FREE)
        found = self._asked.look(sandbox)
        assert found == self._asked.as_installed, f"unprepared, and the node has {found}"
        await node_checks.check_stop(sandbox)
        return "nothing left"


class PrepareWithSteps(OneClaim):
    """The first claim after a start."""

    name = "prepare"

    async def perform(self, sandbox: PluginSandbox) -> None:
        await self._calls[sandbox].prepare(sandbox)


class UnprepareWithSteps(OneClaim):
    """The only claim of a node."""

    name = "unprepare"

    async def arrange(self, sandbox: PluginSandbox) -> None:
        await super().arrange(sandbox)
        await kubelet_calls.prepare(sandbox, self._calls[sandbox].claim)
        await asyncio.sleep(sandbox.tested.settles_s)

    async def perform(self, sandbox: PluginSandbox) -> None:
        await self._calls[sandbox].unprepare(sandbox)

    async def check_recovery(self, sandbox: PluginSandbox) -> str:
        retried = await self._calls[sandbox].unprepare_again(sandbox)
        return f"{retried}; " + await self.check_as_installed(sandbox)


class StartAfterReboot(OneClaim):
    """The start that changes the hardware again for a claim that is held."""

    name = "start after a reboot that ended"
    is_start = True

    async def arrange(self, sandbox: PluginSandbox) -> None:
        await super().arrange(sandbox)
        await kubelet_calls.prepare(sandbox, self._calls[sandbox].claim)
        await sandbox.kill()
        await self.reboot(sandbox)

    async def reboot(self, sandbox: PluginSandbox) -> None:
        """Reboot the node, whose plugin is dead."""
        sandbox.reboot()

    async def perform(self, sandbox: PluginSandbox) -> None:
        await sandbox.wait_serving()
        await sandbox.wait_until(
            lambda: self._asked.look(sandbox) == self._asked.changed, "the hardware to be as before"
        )
        await asyncio.sleep(sandbox.tested.settles_s)


class StartAfterKilledPrepare(OneClaim):
    """The start that undoes what a plugin had begun when it was killed in a prepare.

    It is killed in a call of NVML, while the GPUs are in persistence mode: without it they lose
    their settings with their last client.
    """

    name = "start that undoes"
    is_start = True

    async def arrange(self, sandbox: PluginSandbox) -> None:
        await super().arrange(sandbox)
        await self.kill_in_prepare(sandbox)
        assert self._asked.look(sandbox) != self._asked.as_installed

    async def kill_in_prepare(self, sandbox: PluginSandbox) -> None:
        """Have the plugin killed when the prepare of its claim has changed something."""
        gpu_modes.keep_settings(sandbox.node)
        sandbox.node.simctl("fault", "add", *self._asked.killed_in)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await kubelet_calls.prepare(sandbox, self._calls[sandbox].claim)
        await sandbox.wait_dead()
        await sandbox.kill()
        sandbox.node.simctl("fault", "rm", "all")

    async def perform(self, sandbox: PluginSandbox) -> None:
        await sandbox.wait_serving()
        await sandbox.wait_until(
            lambda: not node_checks.started_claims(sandbox), "what was begun to be undone"
        )
        await sandbox.wait_until(sandbox.is_idle, "the plugin to come to rest")


class _WithDaemon(OneClaim):
    """A claim with an MPS daemon, whose pod runs on the node whatever becomes of the plugin."""

    def __init__(self, asked: ChangingClaim) -> None:
        super().__init__(asked)
        self._pods: dict[PluginSandbox, MpsPods] = {}

    def neighbours(self, sandbox: PluginSandbox) -> AbstractAsyncContextManager[object]:
        self._pods[sandbox] = MpsPods(sandbox.server, sandbox.node)
        return self._pods[sandbox].serving()

    async def arrange(self, sandbox: PluginSandbox) -> None:
        await sandbox.kill()
        pods = self._pods[sandbox]
        await asyncio.to_thread(pods.remove_all)
        await sandbox.wait_until(lambda: not pods.running(), "the daemons to end")
        await super().arrange(sandbox)

    def check_interrupted(self, sandbox: PluginSandbox) -> None:
        super().check_interrupted(sandbox)
        known = node_checks.records(sandbox).keys() | node_checks.started_claims(sandbox)
        is_known = self._calls[sandbox].claim.uid in known
        allowed = [
            each
            for each in self._pods[sandbox].directories()
            if (each.path / mps_layout.RUN).exists() and not each.is_forbidden
        ]
        assert is_known or not allowed, "a daemon may run for a claim without a record"

    async def check_as_installed(self, sandbox: PluginSandbox) -> str:
        await sandbox.wait_until(self._pods[sandbox].is_clean, "the daemon to be deleted")
        return await super().check_as_installed(sandbox)


class PrepareWithDaemon(_WithDaemon, PrepareWithSteps):
    """The first claim after a start, whose daemon is started and waited for."""


class UnprepareWithDaemon(_WithDaemon, UnprepareWithSteps):
    """The only claim of a node, whose daemon is ended and deleted."""


class StartAfterRebootWithDaemon(_WithDaemon, StartAfterReboot):
    """The start that lets the daemon of a claim run again, on a GPU that is prepared for it."""

    async def reboot(self, sandbox: PluginSandbox) -> None:
        await asyncio.to_thread(self._pods[sandbox].reboot)
        await super().reboot(sandbox)


class StartAfterKilledPrepareWithDaemon(_WithDaemon, StartAfterKilledPrepare):
    """The start that undoes what was done to a GPU before its daemon was started."""
