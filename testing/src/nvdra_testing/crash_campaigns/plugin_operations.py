# SPDX-License-Identifier: Apache-2.0
"""The operations of the GPU plugin that a campaign interrupts, and their required results.

Each operation is arranged so that it has to do all its work: the CDI spec is removed before a
prepare, and the unprepared claim is the last one of an older driver.
"""

import asyncio
import contextlib
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from nvdra_api.resource.claims import ClaimRef
from nvdra_sim import installation
from nvdra_sim.configuration import node_config

from nvdra_testing.crash_campaigns import kubelet_calls, node_checks
from nvdra_testing.crash_campaigns.kubelet_calls import InterruptedCall
from nvdra_testing.crash_campaigns.plugin_sandbox import PluginSandbox
from nvdra_testing.node import plugin

NEWER_DRIVER = "590.44.01"


class Operation(Protocol):
    """One operation of the plugin.

    Attributes:
        name: Its name in the report.
        is_start: Whether it is the plugin's start itself.
    """

    name: str
    is_start: bool

    def neighbours(self, sandbox: PluginSandbox) -> AbstractAsyncContextManager[object]:
        """What runs on the sandbox's node beside the plugin, and is not killed with it."""
        del sandbox
        return contextlib.nullcontext()

    async def prepare_sandbox(self, sandbox: PluginSandbox) -> None:
        """Save the initial state of the strikes; called once per sandbox."""

    async def arrange(self, sandbox: PluginSandbox) -> None:
        """Restore the initial state, and start the plugin unless that is the operation."""

    async def perform(self, sandbox: PluginSandbox) -> None:
        """Perform the operation; the plugin may be killed at any time."""

    def check_interrupted(self, sandbox: PluginSandbox) -> None:
        """Check what must be true at any time, on the node as the kill has left it."""

    async def end_interruption(self, sandbox: PluginSandbox) -> None:
        """Let happen what happens between the kill and the next start: nothing, mostly."""
        del sandbox

    async def check_recovery(self, sandbox: PluginSandbox) -> str:
        """After a restart, make the kubelet's retry, check everything, and describe the result."""


class FirstStart(Operation):
    """The first start on a node: database, lock, spec, sockets, slices."""

    name = "first start"
    is_start = True

    async def prepare_sandbox(self, sandbox: PluginSandbox) -> None:
        await _remember_specs(sandbox)

    async def arrange(self, sandbox: PluginSandbox) -> None:
        sandbox.restore_files("nothing")
        await asyncio.to_thread(sandbox.delete_slices)

    async def perform(self, sandbox: PluginSandbox) -> None:
        await sandbox.wait_serving()

    async def check_recovery(self, sandbox: PluginSandbox) -> str:
        return await _check_nothing_prepared(sandbox)


class StartAfterKill(Operation):
    """A start after a kill that left sockets, a partial spec, an old spec and a WAL."""

    name = "start after a kill"
    is_start = True

    def __init__(self) -> None:
        self._held: dict[PluginSandbox, tuple[ClaimRef, bytes]] = {}

    async def prepare_sandbox(self, sandbox: PluginSandbox) -> None:
        await sandbox.start()
        before = sandbox.create_claim("gpu-0")
        await kubelet_calls.prepare(sandbox, before)
        (old,) = sandbox.node.cdi.glob("*.yaml")
        content = old.read_bytes()
        await sandbox.stop()
        _install_newer_driver(sandbox)
        await _remember_specs(sandbox)
        await sandbox.start()
        held = sandbox.create_claim("gpu-1")
        self._held[sandbox] = held, await kubelet_calls.prepare(sandbox, held)
        await kubelet_calls.unprepare(sandbox, before)
        old.write_bytes(content)
        (sandbox.node.cdi / f"spec.{old.stem}.0123456789abcdef.tmp").write_bytes(content[:1000])
        await sandbox.kill()
        sandbox.save_files(self.name)

    async def arrange(self, sandbox: PluginSandbox) -> None:
        sandbox.restore_files(self.name)

    async def perform(self, sandbox: PluginSandbox) -> None:
        await sandbox.wait_serving()
        await asyncio.sleep(sandbox.tested.settles_s)

    async def check_recovery(self, sandbox: PluginSandbox) -> str:
        claim, answer = self._held[sandbox]
        assert await kubelet_calls.prepare(sandbox, claim) == answer, "the repeated answer differs"
        await check_prepared(sandbox, claim, "gpu-1")
        await kubelet_calls.unprepare(sandbox, claim)
        return "held claim answered as before; " + await _check_nothing_prepared(sandbox)


class Prepare(Operation):
    """The first claim after a start, on a node whose CDI spec was removed."""

    name = "prepare"
    is_start = False

    def __init__(self) -> None:
        self._calls: dict[PluginSandbox, InterruptedCall] = {}

    async def prepare_sandbox(self, sandbox: PluginSandbox) -> None:
        await _remember_specs(sandbox)
        sandbox.save_files(self.name)

    async def arrange(self, sandbox: PluginSandbox) -> None:
        sandbox.restore_files(self.name)
        await sandbox.start()
        self._calls[sandbox] = InterruptedCall(sandbox.create_claim("gpu-0"))
        for spec in sandbox.node.cdi.iterdir():
            spec.unlink()

    async def perform(self, sandbox: PluginSandbox) -> None:
        await self._calls[sandbox].prepare(sandbox)

    async def check_recovery(self, sandbox: PluginSandbox) -> str:
        call = self._calls[sandbox]
        retried = await call.prepare_again(sandbox)
        await check_prepared(sandbox, call.claim, "gpu-0")
        await kubelet_calls.unprepare(sandbox, call.claim)
        return f"{retried}; " + await _check_nothing_prepared(sandbox)


class Unprepare(Operation):
    """The last claim of an older driver's generation, whose spec is removed with it."""

    name = "unprepare"
    is_start = False

    def __init__(self) -> None:
        self._calls: dict[PluginSandbox, InterruptedCall] = {}

    async def prepare_sandbox(self, sandbox: PluginSandbox) -> None:
        await sandbox.start()
        self._calls[sandbox] = InterruptedCall(sandbox.create_claim("gpu-0"))
        await kubelet_calls.prepare(sandbox, self._calls[sandbox].claim)
        await sandbox.stop()
        sandbox.save_files("older driver")
        _install_newer_driver(sandbox)
        await _remember_specs(sandbox)
        sandbox.restore_files("older driver")
        await sandbox.start()
        await sandbox.stop()
        sandbox.save_files(self.name)

    async def arrange(self, sandbox: PluginSandbox) -> None:
        sandbox.restore_files(self.name)
        self._calls[sandbox] = InterruptedCall(self._calls[sandbox].claim)
        await sandbox.start()

    async def perform(self, sandbox: PluginSandbox) -> None:
        await self._calls[sandbox].unprepare(sandbox)

    async def check_recovery(self, sandbox: PluginSandbox) -> str:
        retried = await self._calls[sandbox].unprepare_again(sandbox)
        return f"{retried}; " + await _check_nothing_prepared(sandbox)


async def _remember_specs(sandbox: PluginSandbox) -> None:
    """Remember the CDI specs of a node on which the plugin was started and stopped once."""
    await node_checks.start_on_clean_node(sandbox)
    await sandbox.stop()


async def check_prepared(sandbox: PluginSandbox, claim: ClaimRef, device: str) -> None:
    """Check that the claim has the device, and that no other claim has anything."""
    held = node_checks.records(sandbox)
    assert set(held) == {claim.uid}, f"records: {held}"
    other = await asyncio.to_thread(sandbox.create_claim, device)
    await kubelet_calls.check_prepared(sandbox, claim, device, other)


async def _check_nothing_prepared(sandbox: PluginSandbox) -> str:
    """Check that nothing is prepared, everything can be prepared, and no file is left."""
    await node_checks.check_nothing_prepared(sandbox, ("gpu-0", "gpu-1"))
    await node_checks.check_stop(sandbox)
    return "nothing left"


def _install_newer_driver(sandbox: PluginSandbox) -> None:
    roots = sandbox.node.roots
    described = node_config.from_profile(
        plugin.PROFILE,
        sandbox.node.name,
        {"node": {"visibility": "all"}, "driver": {"version": NEWER_DRIVER}},
    )
    installation.install(
        described,
        driver_root=roots.driver,
        proc_root=roots.proc,
        sys_root=roots.sys,
        dev_root=roots.dev,
    )
