"""What the plugin is doing when it is killed, and what must be true after the kubelet's retry.

Each operation is arranged so that it has all its work to do: the CDI spec is gone before a prepare,
an unprepare is the last of an older driver's.
"""

import asyncio
from typing import Protocol

import plugin
from nvdra_api.types.claims import ClaimRef
from nvdra_sim import config, install

from campaign import findings
from campaign.lane import Lane

NEWER_DRIVER = "590.44.01"
REFUSAL_S = 2.0
"""A claim that must be refused is answered in half of this."""
BEHIND_ANSWER_S = 0.35
"""What is written behind the answer is written within this time (`store.MARK_S` and its commit)."""


class Operation(Protocol):
    """One way through the plugin, to be interrupted.

    Attributes:
        name: For the report.
        is_start: It is the plugin's start itself.
    """

    name: str
    is_start: bool

    async def make_ready(self, lane: Lane) -> None:
        """Once per lane: save the state from which each strike begins."""

    async def arrange(self, lane: Lane) -> None:
        """Put the lane into that state, and start the plugin unless that is the operation."""

    async def perform(self, lane: Lane) -> None:
        """Do it; killed at any moment."""

    async def judge(self, lane: Lane) -> str:
        """The plugin has started again: the kubelet's retry, and all that must hold; in words."""


class Start:
    """The first start on a node: database, lock, spec, sockets, slices."""

    name = "first start"
    is_start = True

    async def make_ready(self, lane: Lane) -> None:
        await _note_specs(lane)

    async def arrange(self, lane: Lane) -> None:
        lane.restore("nothing")
        await asyncio.to_thread(lane.forget_slices)

    async def perform(self, lane: Lane) -> None:
        await lane.served()

    async def judge(self, lane: Lane) -> str:
        return await _judge_free(lane)


class StartAgain:
    """A start after a kill that left all it can: sockets, half a spec, an old spec, a WAL."""

    name = "start after a kill"
    is_start = True

    def __init__(self) -> None:
        self._held: dict[Lane, tuple[ClaimRef, bytes]] = {}

    async def make_ready(self, lane: Lane) -> None:
        await lane.start()
        before = lane.claim("gpu-0")
        await _prepare(lane, before)
        (old,) = lane.node.cdi.glob("*.yaml")
        content = old.read_bytes()
        await lane.stop()
        _install_newer_driver(lane)
        await _note_specs(lane)
        await lane.start()
        held = lane.claim("gpu-1")
        self._held[lane] = held, await _prepare(lane, held)
        await _unprepare(lane, before)
        old.write_bytes(content)
        (lane.node.cdi / f"spec.{old.stem}.0123456789abcdef.tmp").write_bytes(content[:1000])
        await lane.kill()
        lane.save(self.name)

    async def arrange(self, lane: Lane) -> None:
        lane.restore(self.name)

    async def perform(self, lane: Lane) -> None:
        await lane.served()

    async def judge(self, lane: Lane) -> str:
        claim, answer = self._held[lane]
        assert await _prepare(lane, claim) == answer, "the repeated answer differs"
        await _judge_held(lane, claim, "gpu-1")
        await _unprepare(lane, claim)
        return "held claim answered as before; " + await _judge_free(lane)


class Prepare:
    """The first claim after a start, on a node whose CDI spec somebody has removed."""

    name = "prepare"
    is_start = False

    def __init__(self) -> None:
        self._claims: dict[Lane, ClaimRef] = {}
        self._answered: set[Lane] = set()

    async def make_ready(self, lane: Lane) -> None:
        await _note_specs(lane)
        lane.save(self.name)

    async def arrange(self, lane: Lane) -> None:
        lane.restore(self.name)
        await lane.start()
        self._claims[lane] = lane.claim("gpu-0")
        self._answered.discard(lane)
        for spec in lane.node.cdi.iterdir():
            spec.unlink()

    async def perform(self, lane: Lane) -> None:
        await _prepare(lane, self._claims[lane])
        self._answered.add(lane)
        await asyncio.sleep(BEHIND_ANSWER_S)

    async def judge(self, lane: Lane) -> str:
        claim = self._claims[lane]
        was_held = claim.uid in findings.records(lane)
        assert was_held or lane not in self._answered, "what was answered is not on the disk"
        answer = await _prepare(lane, claim)
        assert await _prepare(lane, claim) == answer, "the repeated answer differs"
        await _judge_held(lane, claim, "gpu-0")
        await _unprepare(lane, claim)
        retried = "answered from its record" if was_held else "prepared by the retry"
        return f"{retried}; " + await _judge_free(lane)


class Unprepare:
    """The last claim of an older driver's generation, whose spec goes with it."""

    name = "unprepare"
    is_start = False

    def __init__(self) -> None:
        self._claims: dict[Lane, ClaimRef] = {}
        self._answered: set[Lane] = set()

    async def make_ready(self, lane: Lane) -> None:
        await lane.start()
        claim = self._claims[lane] = lane.claim("gpu-0")
        await _prepare(lane, claim)
        await lane.stop()
        lane.save("older driver")
        _install_newer_driver(lane)
        await _note_specs(lane)
        lane.restore("older driver")
        await lane.start()
        await lane.stop()
        lane.save(self.name)

    async def arrange(self, lane: Lane) -> None:
        lane.restore(self.name)
        self._answered.discard(lane)
        await lane.start()

    async def perform(self, lane: Lane) -> None:
        await _unprepare(lane, self._claims[lane])
        self._answered.add(lane)
        await asyncio.sleep(BEHIND_ANSWER_S)

    async def judge(self, lane: Lane) -> str:
        claim = self._claims[lane]
        was_held = claim.uid in findings.records(lane)
        assert not was_held or lane not in self._answered, "what was answered is not on the disk"
        await _unprepare(lane, claim)
        retried = "unprepared by the retry" if was_held else "was unprepared, the retry agrees"
        return f"{retried}; " + await _judge_free(lane)


async def _note_specs(lane: Lane) -> None:
    """Remember what a node has on which the plugin was started once, and stopped."""
    await findings.begin(lane)
    await lane.stop()


async def _prepare(lane: Lane, claim: ClaimRef) -> bytes:
    answer = (await lane.dra.prepare([claim]))[claim.uid]
    assert not answer.error, f"prepare: {answer.error}"
    return bytes(answer.SerializeToString(deterministic=True))


async def _unprepare(lane: Lane, claim: ClaimRef) -> None:
    answer = (await lane.dra.unprepare([claim]))[claim.uid]
    assert not answer.error, f"unprepare: {answer.error}"


async def _judge_held(lane: Lane, claim: ClaimRef, device: str) -> None:
    """The claim holds the device, and nobody else does or can."""
    assert set(findings.records(lane)) == {claim.uid}, f"records: {findings.records(lane)}"
    other = await asyncio.to_thread(lane.claim, device)
    refused = (await lane.dra.prepare([other], timeout_s=REFUSAL_S))[other.uid].error
    assert refused.startswith(f"DeviceInUse: {device} is held by claim default/{claim.name}"), (
        f"a second claim for {device} was answered: {refused or 'as if it were free'}"
    )


async def _judge_free(lane: Lane) -> str:
    """Nobody holds anything, everything can be had, and nothing is left that has no meaning."""
    await findings.judge_empty(lane, ("gpu-0", "gpu-1"))
    await findings.judge_stop(lane)
    return "nothing left"


def _install_newer_driver(lane: Lane) -> None:
    roots = lane.node.roots
    described = config.from_profile(
        plugin.PROFILE,
        lane.node.name,
        {"node": {"visibility": "all"}, "driver": {"version": NEWER_DRIVER}},
    )
    install.install(
        described,
        driver_root=roots.driver,
        proc_root=roots.proc,
        sys_root=roots.sys,
        dev_root=roots.dev,
    )
