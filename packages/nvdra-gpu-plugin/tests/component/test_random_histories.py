"""Random orders of prepare, unprepare, crash, restart, reboot and deletion, against a model.

Claims are for whole GPUs, for MIG devices that are made for them, and for both; some have admin
access to whole GPUs, some have shares of them, and some share one by MPS. The plugin's process, the
API server, the daemons and the node's files are real, the test is the kubelet. CI runs 100
sequences of up to 12 steps; `--sequences=2000 --sequences-seed=7` runs others.
"""

import asyncio
import contextlib
import functools
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from queue import Empty, Queue
from typing import Any, cast
from uuid import uuid4

import grpc
import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, strategies
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.crash_campaigns import node_checks, threaded_sandboxes
from nvdra_testing.crash_campaigns.claim_model import (
    ClaimModel,
    ModelClaim,
    PrepareAnswer,
    parts,
)
from nvdra_testing.crash_campaigns.plugin_sandbox import DIVIDING_GPU_PLUGIN
from nvdra_testing.crash_campaigns.threaded_sandboxes import ThreadedSandbox
from nvdra_testing.hardware import gpu_modes
from nvdra_testing.kubelet.checkpoint_file import CheckpointFile
from nvdra_testing.node import mps_pods, plugin

FLAGS = (
    "--feature-gates=DynamicMIG=true,ConsumableShares=true,MPSSupport=true",
    "--consumable-shares=unlimited",
    *mps_pods.FLAGS,
)
GPUS = ("gpu-0", "gpu-1", "gpu-2")
"""Few, so that claims meet."""
MADE = tuple(
    f"{gpu}-mig-{part}"
    for gpu in ("gpu-1", "gpu-2")
    for part in ("1g10gb-19-0", "1g10gb-19-3", "2g20gb-14-2", "3g40gb-9-4")
)
"""MIG devices; the second and third of a GPU take the same place."""


def is_possible(devices: list[str]) -> bool:
    """Whether the scheduler could allocate them to one claim."""
    return len(parts(devices)) == sum(len(parts([each])) for each in devices)


DEVICES = strategies.lists(
    strategies.sampled_from(GPUS) | strategies.sampled_from(MADE), min_size=1, max_size=2
).filter(is_possible)
STAGES = 3
STEPS = 12
BATCH = 10
"""Sequences of one seed."""
SHORT_S = 2.0
"""A caller's patience for what must be refused: it is answered in half of this."""
LONG_S = 20.0
TOO_LATE = ("DeadlineExceeded", "ApiUnavailable", "LockTimeout", "MpsNotReady")
"""Answers that say nothing of who holds what."""
WAIT_S = 0.1
"""How long the holder of a GPU lets a new claim wait; either order of the two calls is right."""


class Node(RuleBasedStateMachine):
    """One node from empty to empty; the plugin outlives a sequence that ends well."""

    claims = Bundle("claims")

    def __init__(self, stage: ThreadedSandbox, done: Counter[str]) -> None:
        super().__init__()
        self.done = done
        self.done["sequence"] += 1
        self.stage, self.lane = stage, stage.sandbox
        self.books = ClaimModel()
        self.everything: list[ModelClaim] = []
        self.kubelet = CheckpointFile(self.lane.node.kubelet)
        self.is_broken = True
        if self.lane.is_dirty:
            self.stage.run(node_checks.start_on_clean_node(self.lane))
        self.lane.is_dirty = True
        self.kubelet.write()
        self.is_broken = False

    # What users do

    @initialize(target=claims, wanted=strategies.lists(DEVICES, min_size=3, max_size=3))
    def begin(self, wanted: list[list[str]]) -> MultipleResults[ModelClaim]:
        return multiple(*(self._created("", tuple(devices), is_admin=False) for devices in wanted))

    @rule(target=claims, devices=DEVICES, wants_admin=strategies.booleans())
    def create(self, devices: list[str], wants_admin: bool) -> ModelClaim:
        is_admin = wants_admin and set(devices) <= set(GPUS)
        return self._created("", tuple(devices), is_admin)

    @rule(
        target=claims,
        gpus=strategies.lists(strategies.sampled_from(GPUS), min_size=1, max_size=2),
        number=strategies.integers(1, 3),
    )
    def create_shares(self, gpus: list[str], number: int) -> MultipleResults[ModelClaim]:
        """Create claims that have shares of the same GPUs, perhaps two of one."""
        devices = tuple(gpus)
        return multiple(
            *(self._created("", devices, is_admin=False, is_share=True) for _ in range(number))
        )

    @rule(target=claims, gpu=strategies.sampled_from(GPUS))
    def create_with_daemon(self, gpu: str) -> ModelClaim:
        """Create a claim that shares a whole GPU by MPS."""
        self.done["MPS"] += 1
        return self._created("", (gpu,), is_admin=False, config=plugin.shared_by_mps())

    @rule(target=claims, claim=claims, again=strategies.none() | strategies.sampled_from(GPUS))
    def delete(
        self, claim: ModelClaim, again: str | None
    ) -> ModelClaim | MultipleResults[ModelClaim]:
        """Delete a claim, and create another one under its name perhaps."""
        for each in [*self.books.existing]:
            if each.ref.name == claim.ref.name:
                self.done["deletion"] += 1
                self.lane.delete_claim(each.ref)
                self.books.existing.remove(each)
        if again is None:
            return multiple()
        self.done["same name"] += 1
        return self._created(claim.ref.name, (again,), claim.is_admin)

    # What the kubelet does

    @rule(claims=strategies.lists(claims, min_size=1, max_size=3, unique=True))
    def prepare(self, claims: list[ModelClaim]) -> None:
        with self._expected():
            self._up()
            rivals = any(one.excludes(other) for one in claims for other in claims)
            is_refusal = rivals or any(self.books.is_blocked(claim) for claim in claims)
            for claim in claims:
                self._note(claim)
            answers = self.stage.run(self._asked(claims, SHORT_S if is_refusal else LONG_S))
            late = [
                each
                for each in claims
                if each.ref.uid not in answers or answers[each.ref.uid].error.startswith(TOO_LATE)
            ]
            if late:
                self.done["asked again"] += 1
                answers |= self.stage.run(self._asked(late, LONG_S))
            self._take(claims, answers)

    @rule(claim=claims)
    def prepare_one(self, claim: ModelClaim) -> None:
        self.prepare([claim])

    @rule(claim=claims)
    def wait_for_the_holders_to_let_go(self, claim: ModelClaim) -> None:
        with self._expected():
            holders = [*self.books.conflicting_claims(claim)]
            if claim not in self.books.existing or not holders:
                return
            self._up()
            self._note(claim)
            answers = self.stage.run(self._handed_over(claim, holders))
            assert not answers[claim.ref.uid].error, answers[claim.ref.uid].error
            for holder in holders:
                self.books.prepared.discard(holder)
                self._let_go(holder)
            self._take([claim], answers)
            self.done["handed over"] += 1

    @rule(claims=strategies.lists(claims, min_size=1, max_size=2, unique=True))
    def unprepare(self, claims: list[ModelClaim]) -> None:
        with self._expected():
            self._up()
            self.stage.run(self._unprepared(claims))
            for claim in claims:
                self.books.prepared.discard(claim)
                self._let_go(claim)
                self.done["unprepared"] += 1

    @rule(claim=claims)
    def lose_the_unprepare(self, claim: ModelClaim) -> None:
        """The kubelet forgets the claim and never calls for it again."""
        self.done["lost unprepare"] += claim in self.books.prepared
        self._let_go(claim)

    # What happens to the process and to the node

    @rule(how=strategies.sampled_from(("crash", "restart", "reboot")))
    def end(self, how: str) -> None:
        # No precondition: whether it runs depends on when an orphan was removed, and what is drawn
        # must not.
        if self.lane.process is None:
            return
        with self._expected():
            self.done[how] += 1
            if how == "restart":
                assert self.stage.run(self.lane.stop()) == 0
                return
            self.stage.run(self.lane.kill())
            if how == "reboot":
                self.stage.pods.reboot()
                self.lane.reboot()

    # What must be true at any time

    @invariant()
    def the_records_are_those_of_the_books(self) -> None:
        with self._expected():
            self.done["step"] += 1
            records = node_checks.records(self.lane)
            self.books.check_records(records)
            for claim in self.books.prepared:
                held = json.loads(records[claim.ref.uid])["devices"]
                recorded = tuple(each["device"] for each in held)
                assert recorded == claim.devices, f"{claim} is recorded with {recorded}"

    @contextlib.contextmanager
    def _expected(self) -> Iterator[None]:
        """What fails in here leaves nothing that the end of the sequence could judge."""
        self.is_broken = True
        yield
        self.is_broken = False

    def teardown(self) -> None:
        if not self.is_broken:
            self._end()
            self.lane.is_dirty = False

    def _end(self) -> None:
        """Every claim that is held is answered as before, then let go: the node is as new."""
        self._up()
        for claim in sorted(self.books.prepared, key=lambda claim: claim.ref.name):
            if not self.books.is_orphan(claim):
                self.prepare_one(claim)
        self.the_records_are_those_of_the_books()
        self.stage.run(self._unprepared(self.everything))
        self.stage.run(self.lane.wait_until(self.stage.pods.is_clean, "daemons to be deleted"))
        self.stage.run(node_checks.check_nothing_prepared(self.lane, GPUS))
        left = json.loads(self.lane.node.simctl("mig", "list", "--json"))
        assert left == [], f"MIG devices are left: {left}"
        exclusive = [
            index for index in range(len(GPUS)) if gpu_modes.is_exclusive(self.lane.node, index)
        ]
        assert not exclusive, f"GPUs are left exclusive: {exclusive}"
        for claim in [*self.books.existing]:
            self.lane.delete_claim(claim.ref)

    def _created(
        self,
        name: str,
        devices: tuple[str, ...],
        is_admin: bool,
        *,
        is_share: bool = False,
        config: Sequence[Mapping[str, Any]] = (),
    ) -> ModelClaim:
        shares = tuple(str(uuid4()) for _ in devices) if is_share else ()
        ref = plugin.create_allocated_claim(
            self.lane.server,
            self.lane.node.name,
            devices,
            admin=is_admin,
            name=name,
            shares=shares,
            config=config,
        )
        claim = ModelClaim(ref, devices, is_admin, shares)
        self.done["share"] += len(shares)
        self.everything.append(claim)
        self.done["MIG device"] += sum("-mig-" in each for each in devices)
        self.books.existing.add(claim)
        return claim

    def _note(self, claim: ModelClaim) -> None:
        self.kubelet.add_claim(claim.ref)
        self.books.known_to_kubelet.add(claim)

    def _let_go(self, claim: ModelClaim) -> None:
        self.kubelet.remove_claim(claim.ref)
        self.books.known_to_kubelet.discard(claim)

    def _take(self, claims: list[ModelClaim], answers: dict[str, PrepareAnswer]) -> None:
        self.books.check_prepare(claims, answers)
        refused = sum(bool(answer.error) for answer in answers.values())
        self.done.update(refused=refused, prepared=len(answers) - refused)

    def _up(self) -> None:
        if self.lane.process is None:
            self.done["start"] += 1
            self.stage.run(self.lane.start())

    async def _asked(self, claims: list[ModelClaim], timeout_s: float) -> dict[str, PrepareAnswer]:
        try:
            answers = await self.lane.dra.prepare(
                [each.ref for each in claims], timeout_s=timeout_s
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED or timeout_s == LONG_S:
                raise
            return {}  # on a machine with much else to do
        return {
            uid: PrepareAnswer(
                answer.error,
                tuple(device.device_name for device in answer.devices),
                answer.SerializeToString(deterministic=True),
                tuple(each.share_id for each in answer.devices if each.HasField("share_id")),
            )
            for uid, answer in answers.items()
        }

    async def _unprepared(self, claims: list[ModelClaim]) -> None:
        answers = await self.lane.dra.unprepare([claim.ref for claim in claims])
        assert not [answer.error for answer in answers.values() if answer.error]

    async def _handed_over(
        self, claim: ModelClaim, holders: list[ModelClaim]
    ) -> dict[str, PrepareAnswer]:
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(self._asked([claim], LONG_S))
            await asyncio.sleep(WAIT_S)
            await self._unprepared(holders)
        return waiting.result()


def run(stage: ThreadedSandbox, batches: Queue[int], done: Counter[str]) -> None:
    """Run batches of sequences, by their seeds, until there are none left."""
    settings = hypothesis.settings(
        max_examples=BATCH,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    with contextlib.suppress(Empty):
        while True:
            seed = batches.get_nowait()
            try:
                # A partial, not a class: Hypothesis parses the source of a class each time, which
                # CPython 3.11 does not survive on two threads at once (gh-106905).
                here = functools.partial(Node, stage, done)
                run_state_machine_as_test(
                    cast("type[Node]", hypothesis.seed(seed)(here)), settings=settings
                )
            except BaseException as error:
                error.add_note(f"--sequences={BATCH} --sequences-seed={seed} runs this batch alone")
                with batches.mutex:
                    batches.queue.clear()
                raise


@pytest.mark.timeout(0)
def test_whatever_happens_in_whatever_order_nobody_loses_a_gpu_and_no_gpu_has_two_holders(
    server: ApiServer, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    sequences = pytestconfig.getoption("--sequences", default=100)
    seed = pytestconfig.getoption("--sequences-seed", default=4)
    done: Counter[str] = Counter()
    batches: Queue[int] = Queue()
    for number in range(-(-sequences // BATCH)):
        batches.put(seed + number)
    with (
        threaded_sandboxes.open_sandboxes(server, STAGES, DIVIDING_GPU_PLUGIN, [*FLAGS]) as opened,
        ThreadPoolExecutor(STAGES) as threads,
    ):
        runs = [threads.submit(run, stage, batches, done) for stage in opened]
        try:
            for each in as_completed(runs):
                each.result()
        finally:
            counts = ", ".join(f"{kind} {count}" for kind, count in sorted(done.items()))
            with capsys.disabled():
                sys.stdout.write(f"\nseeds from {seed}: {counts}\n")
    assert done["sequence"] >= sequences
