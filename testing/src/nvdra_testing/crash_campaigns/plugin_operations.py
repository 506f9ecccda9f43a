"""The operations of the GPU plugin that a campaign interrupts, and their required results.

Each operation is arranged so that it has to do all its work: the CDI spec is removed before a
prepare, and the unprepared claim is the last one of an older driver.
"""

import asyncio
from typing import Protocol

from nvdra_api.resource.claims import ClaimRef
from nvdra_sim import installation
from nvdra_sim.configuration import node_config

from nvdra_testing.crash_campaigns import node_checks
from nvdra_testing.crash_campaigns.plugin_sandbox import PluginSandbox
from nvdra_testing.node import plugin

NEWER_DRIVER = "590.44.01"
FAILING_PREPARE_TIMEOUT_S = 2.0
"""A prepare that must fail is answered in half of this time."""
AFTER_ANSWER_S = 0.35
"""What is written after the answer is written within this time."""


class Operation(Protocol):
    """One operation of the plugin.

    Attributes:
        name: Its name in the report.
        is_start: Whether it is the plugin's start itself.
    """

    name: str
    is_start: bool

    async def prepare_sandbox(self, sandbox: PluginSandbox) -> None:
        """Save the initial state of the strikes; called once per sandbox."""

    async def arrange(self, sandbox: PluginSandbox) -> None:
        """Restore the initial state, and start the plugin unless that is the operation."""

    async def perform(self, sandbox: PluginSandbox) -> None:
        """Perform the operation; the plugin may be killed at any time."""

    async def check_recovery(self, sandbox: PluginSandbox) -> str:
        """After a restart, make the kubelet's retry, check everything, and describe the result."""


class FirstStart:
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


class StartAfterKill:
    """A start after a kill that left sockets, a partial spec, an old spec and a WAL."""

    name = "start after a kill"
    is_start = True

    def __init__(self) -> None:
        self._held: dict[PluginSandbox, tuple[ClaimRef, bytes]] = {}

    async def prepare_sandbox(self, sandbox: PluginSandbox) -> None:
        await sandbox.start()
        before = sandbox.create_claim("gpu-0")
        await _prepare(sandbox, before)
        (old,) = sandbox.node.cdi.glob("*.yaml")
        content = old.read_bytes()
        await sandbox.stop()
        _install_newer_driver(sandbox)
        await _remember_specs(sandbox)
        await sandbox.start()
        held = sandbox.create_claim("gpu-1")
        self._held[sandbox] = held, await _prepare(sandbox, held)
        await _unprepare(sandbox, before)
        old.write_bytes(content)
        (sandbox.node.cdi / f"spec.{old.stem}.0123456789abcdef.tmp").write_bytes(content[:1000])
        await sandbox.kill()
        sandbox.save_files(self.name)

    async def arrange(self, sandbox: PluginSandbox) -> None:
        sandbox.restore_files(self.name)

    async def perform(self, sandbox: PluginSandbox) -> None:
        await sandbox.wait_serving()

    async def check_recovery(self, sandbox: PluginSandbox) -> str:
        claim, answer = self._held[sandbox]
        assert await _prepare(sandbox, claim) == answer, "the repeated answer differs"
        await _check_prepared(sandbox, claim, "gpu-1")
        await _unprepare(sandbox, claim)
        return "held claim answered as before; " + await _check_nothing_prepared(sandbox)


class Prepare:
    """The first claim after a start, on a node whose CDI spec was removed."""

    name = "prepare"
    is_start = False

    def __init__(self) -> None:
        self._claims: dict[PluginSandbox, ClaimRef] = {}
        self._answered: set[PluginSandbox] = set()

    async def prepare_sandbox(self, sandbox: PluginSandbox) -> None:
        await _remember_specs(sandbox)
        sandbox.save_files(self.name)

    async def arrange(self, sandbox: PluginSandbox) -> None:
        sandbox.restore_files(self.name)
        await sandbox.start()
        self._claims[sandbox] = sandbox.create_claim("gpu-0")
        self._answered.discard(sandbox)
        for spec in sandbox.node.cdi.iterdir():
            spec.unlink()

    async def perform(self, sandbox: PluginSandbox) -> None:
        await _prepare(sandbox, self._claims[sandbox])
        self._answered.add(sandbox)
        await asyncio.sleep(AFTER_ANSWER_S)

    async def check_recovery(self, sandbox: PluginSandbox) -> str:
        claim = self._claims[sandbox]
        was_held = claim.uid in node_checks.records(sandbox)
        assert was_held or sandbox not in self._answered, "what was answered is not on the disk"
        answer = await _prepare(sandbox, claim)
        assert await _prepare(sandbox, claim) == answer, "the repeated answer differs"
        await _check_prepared(sandbox, claim, "gpu-0")
        await _unprepare(sandbox, claim)
        retried = "answered from its record" if was_held else "prepared by the retry"
        return f"{retried}; " + await _check_nothing_prepared(sandbox)


class Unprepare:
    """The last claim of an older driver's generation, whose spec is removed with it."""

    name = "unprepare"
    is_start = False

    def __init__(self) -> None:
        self._claims: dict[PluginSandbox, ClaimRef] = {}
        self._answered: set[PluginSandbox] = set()

    async def prepare_sandbox(self, sandbox: PluginSandbox) -> None:
        await sandbox.start()
        claim = self._claims[sandbox] = sandbox.create_claim("gpu-0")
        await _prepare(sandbox, claim)
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
        self._answered.discard(sandbox)
        await sandbox.start()

    async def perform(self, sandbox: PluginSandbox) -> None:
        await _unprepare(sandbox, self._claims[sandbox])
        self._answered.add(sandbox)
        await asyncio.sleep(AFTER_ANSWER_S)

    async def check_recovery(self, sandbox: PluginSandbox) -> str:
        claim = self._claims[sandbox]
        was_held = claim.uid in node_checks.records(sandbox)
        assert not was_held or sandbox not in self._answered, "what was answered is not on the disk"
        await _unprepare(sandbox, claim)
        retried = "unprepared by the retry" if was_held else "was unprepared, the retry agrees"
        return f"{retried}; " + await _check_nothing_prepared(sandbox)


async def _remember_specs(sandbox: PluginSandbox) -> None:
    """Remember the CDI specs of a node on which the plugin was started and stopped once."""
    await node_checks.start_on_clean_node(sandbox)
    await sandbox.stop()


async def _prepare(sandbox: PluginSandbox, claim: ClaimRef) -> bytes:
    answer = (await sandbox.dra.prepare([claim]))[claim.uid]
    assert not answer.error, f"prepare: {answer.error}"
    return bytes(answer.SerializeToString(deterministic=True))


async def _unprepare(sandbox: PluginSandbox, claim: ClaimRef) -> None:
    answer = (await sandbox.dra.unprepare([claim]))[claim.uid]
    assert not answer.error, f"unprepare: {answer.error}"


async def _check_prepared(sandbox: PluginSandbox, claim: ClaimRef, device: str) -> None:
    """Check that the claim has the device, and that no other claim can have it."""
    assert set(node_checks.records(sandbox)) == {claim.uid}, (
        f"records: {node_checks.records(sandbox)}"
    )
    other = await asyncio.to_thread(sandbox.create_claim, device)
    refused = (await sandbox.dra.prepare([other], timeout_s=FAILING_PREPARE_TIMEOUT_S))[
        other.uid
    ].error
    assert refused.startswith(f"DeviceInUse: {device} is held by claim default/{claim.name}"), (
        f"a second claim for {device} was answered: {refused or 'as if it were free'}"
    )


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
