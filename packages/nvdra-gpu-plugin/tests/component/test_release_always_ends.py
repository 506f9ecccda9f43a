# SPDX-License-Identifier: Apache-2.0
"""A claim ends whatever it has changed, whatever its GPU does, and whenever that begins.

Every kind of change that a claim makes meets every fault of its GPU at every moment: each case has
a GPU of its own, and the GPUs of a node go through it side by side. Within 30 s after the last
process of the claim has ended it is unprepared. What is left is undone before anything of its GPU
is given away in the same boot, and ends with the boot. `make component` runs a few cases, which the
seed draws (`--sequences-seed=7`), and a soak all of them.
"""

import asyncio
import itertools
import json
import random
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, get_args
from uuid import uuid4

import grpc
import pytest
import pytest_asyncio
from nvdra_api.resource.claims import ClaimRef
from nvdra_gpu_plugin.devices import steps
from nvdra_gpu_plugin.devices.steps import (
    BindVfio,
    DisableMigMode,
    LeaveMigMode,
    MakeMigDevice,
    SetComputeMode,
    ShareByMps,
    ShareByTime,
)
from nvdra_testing.crash_campaigns.node_agreement import GpuModes, found_modes
from nvdra_testing.hardware import driver_installation, gpu_faults
from nvdra_testing.hardware.gpu_faults import FAULTS, USED_BY_THE_CLAIM
from nvdra_testing.node import mps_pods, plugin
from nvdra_testing.node.mps_pods import MpsPods
from nvdra_testing.node.rig import Rig
from pydantic import BaseModel

GATES = "ConsumableShares", "DynamicMIG", "MPSSupport", "NVMLDeviceHealthCheck"
FLAGS = (
    f"--feature-gates={','.join(f'{gate}=true' for gate in (*GATES, 'TimeSlicingSettings'))}",
    "--consumable-shares=unlimited",
    *mps_pods.FLAGS,
)
LARGE, SMALL = "mig-3g40gb-9-4", "mig-1g10gb-19-0"
GPUS = 8
RELEASED_S = 30.0
BUSY_S = 30.0
"""How much longer it may take on a machine with much else to do. What a fault holds up lasts for as
long as the fault."""
CALL_S = 45.0
"""Of the kubelet."""
RETRY_S = 0.5
POLL_S = 0.02
PAUSED_S = 3.0
"""How long a call may take to come to the moment that was drawn; it may end before."""
LAST_CALL = 30
"""A prepare and an unprepare make about so many calls of NVML on a GPU."""
OFFERED_S = 90.0
"""A GPU that has failed is asked again every 10 s; NVML is opened again after a minute."""


@dataclass(frozen=True)
class Kind:
    """What a claim changes.

    Attributes:
        steps: The steps of its record, in their order.
        devices: The devices that it has of its GPU; the GPU itself without any.
        how: As for `create_allocated_claim`.
        is_divided: Whether an administrator has switched its GPU's MIG mode on before.
    """

    steps: tuple[type[BaseModel], ...] = ()
    devices: tuple[str, ...] = ()
    how: Callable[[], Mapping[str, Any]] = dict
    is_divided: bool = False


KINDS: Mapping[str, Kind] = {
    "whole": Kind(),
    "whole GPU of a divided one": Kind((DisableMigMode,), is_divided=True),
    "time slice": Kind((ShareByTime,), how=lambda: {"config": plugin.shared_by_time("Long")}),
    "share": Kind(
        (ShareByTime,),
        how=lambda: {"config": plugin.shared_by_time("Short"), "shares": [str(uuid4())]},
    ),
    "MPS": Kind((SetComputeMode, ShareByMps), how=lambda: {"config": plugin.shared_by_mps()}),
    "MIG devices": Kind((MakeMigDevice, MakeMigDevice), (LARGE, SMALL)),
    "MPS on a MIG device": Kind(
        (MakeMigDevice, ShareByMps),
        (LARGE,),
        lambda: {"config": plugin.shared_by_mps("MigDeviceConfig")},
    ),
}


class Moment(Enum):
    """When the fault begins."""

    BEFORE = "before the prepare"
    DURING_PREPARE = "during the prepare"
    AFTER = "after the prepare"
    DURING_UNPREPARE = "during the unprepare"


@dataclass(frozen=True)
class Case:
    """A claim and what happens to its GPU.

    Attributes:
        kind: As in `KINDS`.
        fault: As in `FAULTS`.
        moment: When it begins.
        call: Which call of NVML it is, if the moment is during an operation.
    """

    kind: str
    fault: str
    moment: Moment
    call: int

    def __str__(self) -> str:
        at = f" (call {self.call})" if "during" in self.moment.value else ""
        return f"{self.kind}, {self.fault} {self.moment.value}{at}"


def all_cases(draw: random.Random) -> list[Case]:
    """All of them, in a drawn order. Before its prepare no claim has a process."""
    found = [
        Case(kind, fault, moment, draw.randint(0, LAST_CALL))
        for kind, fault, moment in itertools.product(KINDS, FAULTS, Moment)
        if fault != USED_BY_THE_CLAIM or moment in (Moment.AFTER, Moment.DURING_UNPREPARE)
    ]
    draw.shuffle(found)
    return found


def few_cases(draw: random.Random) -> list[Case]:
    """One for each GPU, with as many kinds, faults and moments as possible."""
    found: list[Case] = []
    left = all_cases(draw)
    while len(found) < GPUS:
        best = min(left, key=lambda case: _seen(case, found))
        found.append(best)
        left.remove(best)
    return found


def _seen(case: Case, others: Sequence[Case]) -> int:
    return sum(
        3 * (case.fault == other.fault) + (case.kind == other.kind) + (case.moment == other.moment)
        for other in others
    )


@dataclass
class Run:
    """A case on its GPU."""

    rig: Rig
    case: Case
    gpu: int
    claim: ClaimRef = field(init=False)
    fault: ExitStack = field(default_factory=ExitStack)

    @property
    def kind(self) -> Kind:
        return KINDS[self.case.kind]

    @property
    def name(self) -> str:
        return f"gpu-{self.gpu}"

    def create(self) -> None:
        if self.kind.is_divided:
            self.rig.node.nvidia_smi("-i", str(self.gpu), "-mig", "1")
        devices = [f"{self.name}-{each}" for each in self.kind.devices] or [self.name]
        self.claim = self.rig.create_claim(*devices, **self.kind.how())

    async def run(self) -> None:
        """Let everything happen until the claim is unprepared."""
        moment = self.case.moment
        if moment is Moment.BEFORE:
            self._break()
            await self._prepare(self.claim)
        elif moment is Moment.DURING_PREPARE:
            await self._broken_during(self._prepare(self.claim))
        else:
            await self._prepare_until_done(self.claim)
            self._check_steps()
            if moment is Moment.AFTER:
                self._break()
            else:
                await self._broken_during(self._unprepare())
        if self.case.fault == USED_BY_THE_CLAIM:
            error = await self._unprepare()
            if self.kind.devices and self.claim.uid in self.rig.recorded_claims():
                assert gpu_faults.CLIENT_PID in error, error
            self.mend()
        began = time.monotonic()
        while error := await self._unprepare():
            took = time.monotonic() - began
            assert took < RELEASED_S + BUSY_S, f"still prepared after {took:.0f} s: {error}"
            await asyncio.sleep(RETRY_S)
        took = time.monotonic() - began
        assert took < RELEASED_S + BUSY_S, f"unprepared after {took:.0f} s"
        assert self.claim.uid not in self.rig.recorded_claims()

    def mend(self) -> None:
        self.fault.close()

    def break_again(self) -> None:
        """Let the fault be there in another boot, too, in which the claim has no process."""
        if self.case.fault != USED_BY_THE_CLAIM:
            self._break()

    async def check_given_away_clean(self) -> None:
        """Whatever is left is undone before another claim has the GPU."""
        claim = self.rig.create_claim(self.name)
        await self._prepare_until_done(claim)
        assert self.modes == GpuModes(), self.modes
        assert self.claim.uid not in tombstones(self.rig)
        assert not (await self.rig.dra.unprepare([claim]))[claim.uid].error
        assert self.modes == GpuModes(), self.modes

    @property
    def modes(self) -> GpuModes:
        return found_modes(self.rig.node, [self.name])[self.name]

    def _break(self) -> None:
        self.fault.enter_context(FAULTS[self.case.fault](self.rig.node, self.gpu))

    async def _broken_during(self, operation: Coroutine[Any, Any, str]) -> None:
        """Stop an operation in a call on the GPU, let the fault begin, and let it go on.

        The kubelet's call ends then, as when its pod is deleted.
        """
        node, deadline = self.rig.node, time.monotonic() + PAUSED_S
        pause = gpu_faults.rules(
            node, self.gpu, *gpu_faults.CALLS, delay_ms="-1", after_calls=str(self.case.call)
        )
        async with asyncio.TaskGroup() as group:
            task = group.create_task(operation)
            with pause as rules:
                while time.monotonic() < deadline:
                    await asyncio.wait([task], timeout=POLL_S)
                    if task.done() or any(gpu_faults.hits(node, each) for each in rules):
                        break
                self._break()
            task.cancel()

    async def _prepare_until_done(self, claim: ClaimRef) -> None:
        """Repeat the call, as the kubelet does: a busy machine may take long to start a daemon."""
        deadline = time.monotonic() + OFFERED_S
        while error := await self._prepare(claim):
            assert time.monotonic() < deadline, f"not given away: {error}"
            await asyncio.sleep(RETRY_S)

    async def _prepare(self, claim: ClaimRef) -> str:
        """The error of a prepare; empty if there is none."""
        try:
            answers = await self.rig.dra.prepare([claim], timeout_s=CALL_S)
        except grpc.aio.AioRpcError as error:
            return str(error.details())
        return str(answers[claim.uid].error)

    async def _unprepare(self) -> str:
        """The error of an unprepare; empty if there is none."""
        try:
            answers = await self.rig.dra.unprepare([self.claim], timeout_s=CALL_S)
        except grpc.aio.AioRpcError as error:
            return str(error.details())
        return str(answers[self.claim.uid].error)

    def _check_steps(self) -> None:
        record = json.loads(self.rig.recorded_claims()[self.claim.uid])
        assert [each["step"] for each in record["steps"]] == [
            each.model_fields["step"].default for each in self.kind.steps
        ]


def tombstones(rig: Rig) -> dict[str, str]:
    """What is left of claims, by UID."""
    path = rig.plugin_dir / "state.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return dict(connection.execute("SELECT uid, payload FROM started_records"))


@pytest_asyncio.fixture
async def pods(rig: Rig) -> AsyncIterator[MpsPods]:
    async with MpsPods(rig.server, rig.node).serving() as serving:
        yield serving


def test_every_kind_of_step_has_claims_here() -> None:
    kinds = set(get_args(get_args(steps.Step)[0]))
    kinds -= {LeaveMigMode}  # which others leave
    kinds -= {BindVfio}  # it needs no NVML, and a kernel whose drivers change: test_passthrough*
    assert {each for kind in KINDS.values() for each in kind.steps} == kinds


async def all_of(runs: Sequence[Run], call: Callable[[Run], Coroutine[Any, Any, None]]) -> None:
    """Call it for all cases side by side, and say which of them have failed, and of what."""
    failed: dict[str, str] = {}

    async def call_one(run: Run) -> None:
        try:
            await call(run)
        except AssertionError as error:
            failed[str(run.case)] = str(error)

    async with asyncio.TaskGroup() as group:
        for run in runs:
            group.create_task(call_one(run))
    assert not failed, json.dumps(failed, indent=1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cases" not in metafunc.fixturenames:
        return
    draw = random.Random(metafunc.config.getoption("--sequences-seed", default=4))
    if metafunc.config.getoption("--soak"):
        found = all_cases(draw)
        batches = [found[at : at + GPUS] for at in range(0, len(found), GPUS)]
    else:
        batches = [few_cases(draw)]
    metafunc.parametrize("cases", batches, ids=[f"batch-{n}" for n in range(len(batches))])


async def test_a_release_always_ends_and_what_it_leaves_does_before_the_next(
    rig: Rig, pods: MpsPods, cases: Sequence[Case]
) -> None:
    await rig.start(*FLAGS)
    offered = rig.devices()
    runs = [Run(rig, case, gpu) for gpu, case in enumerate(cases)]
    half = len(runs) // 2
    for run in runs:
        run.create()
    with ExitStack() as stack:
        for run in runs:
            stack.callback(run.mend)
        await all_of(runs, Run.run)
        for run in runs[:half]:
            run.mend()
        await all_of(runs[:half], Run.check_given_away_clean)

        rig.process.stop(signal.SIGKILL)
        pods.reboot()
        for run in runs[half:]:
            run.mend()
        driver_installation.reboot(rig.node)
        for run in runs[half:]:
            run.break_again()
        await rig.kubelet.restart()
        await rig.start_without_ready(*FLAGS)
        await rig.wait_until(lambda: not tombstones(rig), "the tombstones to be gone")
    await rig.wait_until(
        lambda: rig.devices().keys() == offered.keys(), "everything to be offered", OFFERED_S
    )
    assert rig.recorded_claims() == {}
    found = found_modes(rig.node, [run.name for run in runs])
    assert set(found.values()) == {GpuModes()}, found
    await all_of(runs, Run.check_given_away_clean)
