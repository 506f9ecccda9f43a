# SPDX-License-Identifier: Apache-2.0
"""Random orders of what users, the kubelet and the node do, against a model.

Claims are for whole GPUs, for MIG devices that are made for them, for those of an administrator,
and for several of these; some have admin access to whole GPUs, some have shares of them, and some
share a device by time or by MPS. Between calls the plugin crashes or restarts, the node reboots,
GPUs have other minor numbers in a boot, and they report an Xid or an ECC error, fall off the
bus, need a reset, answer with errors, are unplugged or held by a monitor, and heal. Some claims
have a configuration that exceeds a bound, and harm no other. Afterwards hardware, MPS daemons, CDI
specs, records and slices agree. The plugin's process, the API server,
the daemons and the node's files are real, the test is the kubelet. CI runs 100 sequences of up to
12 steps; `--sequences=2000 --sequences-seed=7` runs others.

In a run of more sequences, one batch of five is on a node whose sysfs is served. There GPUs go to
virtual machines, too, which may outlive their claims, and programs open device nodes; no GPU fails.
"""

import asyncio
import contextlib
import functools
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from nvdra_testing import extreme_json
from nvdra_testing.control_plane.apiserver import ApiServer, RawJson
from nvdra_testing.crash_campaigns import (
    claim_model,
    node_agreement,
    node_checks,
    threaded_sandboxes,
)
from nvdra_testing.crash_campaigns.claim_model import (
    ClaimModel,
    ModelClaim,
    PrepareAnswer,
)
from nvdra_testing.crash_campaigns.drawn_claims import (
    CLAIMS,
    DEVICES,
    DIVIDED,
    DIVIDED_AS_NEW,
    GPUS,
    INTERVALS,
    PASSED_DEVICES,
    PASSING,
    STATIC,
    STATIC_PLACE,
    TESTED,
    USED_GPUS,
    Wanted,
)
from nvdra_testing.crash_campaigns.gpu_incidents import (
    ANSWERS_ERRORS,
    LINGERS_S,
    GpuIncidents,
    Incident,
)
from nvdra_testing.crash_campaigns.gpu_users import GpuUsers
from nvdra_testing.crash_campaigns.node_agreement import GpuModes
from nvdra_testing.crash_campaigns.threaded_sandboxes import ThreadedSandbox
from nvdra_testing.kubelet.checkpoint_file import CheckpointFile
from nvdra_testing.node import mps_pods, plugin

GATES = (
    "ConsumableShares",
    "DynamicMIG",
    "MPSSupport",
    "NVMLDeviceHealthCheck",
    "TimeSlicingSettings",
)
FLAGS = ("--consumable-shares=unlimited", *mps_pods.FLAGS)


def flags(*gates: str) -> list[str]:
    return [f"--feature-gates={','.join(f'{gate}=true' for gate in gates)}", *FLAGS]


STAGES = 3
PASSING_STAGES = 1
PASSING_SHARE = 5
"""Of so many batches, one is on a stage whose sysfs is served, in a run of many sequences."""
USUAL_SEQUENCES = 100
STEPS = 12
BATCH = 10
"""Sequences of one seed."""
SHORT_S = 2.0
"""A caller's patience for what must be refused: it is answered in half of this."""
LONG_S = 20.0
TOO_LATE = ("DeadlineExceeded", "ApiUnavailable", "LockTimeout", "MpsNotReady")
"""Answers that say nothing of who holds what, but that the machine has much else to do: here the
API server is never away, and no holder keeps a lock for long."""
TOO_LATE_FOR_DOUBTFUL = tuple(set(TOO_LATE) - {*claim_model.NOT_WORKING_REASONS})
"""Those that say nothing of a GPU that does not work, either."""
WAIT_S = 0.1
"""How long the holder of a GPU lets a new claim wait; either order of the two calls is right."""
RETRY_S = 0.5
AS_LISTED = tuple(range(len(USED_GPUS)))
"""The minor numbers that GPUs usually have."""
KEPT_S = 30.0
"""A program that keeps a MIG device and computes nothing is taken for a monitor after 10 s."""
AGREED_S = 40.0
"""The longest wait until hardware and slices are as they should be. What cannot be undone is tried
again every 10 s, and so are GPUs that did not work."""


class Node(RuleBasedStateMachine):
    """One node from empty to empty; the plugin outlives a sequence that ends well."""

    claims = Bundle("claims")
    repetitions = 1

    def __init__(
        self,
        stage: ThreadedSandbox,
        incidents: GpuIncidents,
        done: Counter[str],
        failures: list[str],
    ) -> None:
        super().__init__()
        self.failures = failures
        self.done = done
        self.done["sequence"] += 1
        self.stage, self.lane, self.incidents = stage, stage.sandbox, incidents
        self.books = ClaimModel()
        self.healed: set[str] = set()
        self.minors = AS_LISTED
        self.everything: list[ModelClaim] = []
        self.kubelet = CheckpointFile(self.lane.node.kubelet)
        self.is_broken = True
        if self.lane.is_dirty:
            self._divide_gpu()
            self.stage.run(node_checks.start_on_clean_node(self.lane))
        self.lane.is_dirty = True
        self.kubelet.write()
        self.is_broken = False

    # What users do

    @initialize(target=claims, wanted=strategies.lists(DEVICES, min_size=3, max_size=3))
    def begin(self, wanted: list[list[str]]) -> MultipleResults[ModelClaim]:
        return multiple(*(self._created("", tuple(devices), is_admin=False) for devices in wanted))

    @rule(target=claims, wanted=CLAIMS)
    def create(self, wanted: Wanted) -> ModelClaim:
        return self._created("", **wanted._asdict())

    @rule(
        target=claims,
        gpus=strategies.lists(strategies.sampled_from(GPUS), min_size=1, max_size=2),
        number=strategies.integers(1, 3),
        interval=strategies.just("") | INTERVALS,
    )
    def create_shares(
        self, gpus: list[str], number: int, interval: str
    ) -> MultipleResults[ModelClaim]:
        """Create claims that have shares of the same GPUs, perhaps two of one."""
        devices = tuple(gpus)
        return multiple(
            *(
                self._created("", devices, is_admin=False, is_share=True, interval=interval)
                for _ in range(number)
            )
        )

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
            self._wait_for_healed(claims)
            rivals = any(one.excludes(other) for one in claims for other in claims)
            doubtful = [
                each
                for each in claims
                if self.books.is_away(each)
                or self.books.is_uncertain(each)
                or self.books.is_taken(each)
            ]
            blocked = any(self.books.is_blocked(claim) for claim in claims)
            is_refusal = rivals or blocked or bool(doubtful)
            for claim in claims:
                self._note(claim)
            answers = self.stage.run(self._asked(claims, SHORT_S if is_refusal else LONG_S))
            for _ in range(self.repetitions):
                late = [
                    each
                    for each in claims
                    if each.ref.uid not in answers
                    or self._is_late(
                        each, answers[each.ref.uid].error, is_doubtful=each in doubtful
                    )
                ]
                if not late:
                    break
                self.done["asked again"] += 1
                answers |= self.stage.run(self._asked(late, LONG_S))
            self._take(claims, answers)

    def _is_late(self, claim: ModelClaim, error: str, *, is_doubtful: bool) -> bool:
        """Whether an answer says only that the machine has much else to do."""
        del claim
        return error.startswith(TOO_LATE_FOR_DOUBTFUL if is_doubtful else TOO_LATE)

    @rule(claim=claims)
    def prepare_one(self, claim: ModelClaim) -> None:
        self.prepare([claim])

    @rule(claim=claims)
    def wait_for_the_holders_to_let_go(self, claim: ModelClaim) -> None:
        with self._expected():
            holders = [*self.books.conflicting_claims(claim)]
            if claim not in self.books.existing or not holders:
                return
            if any(map(self.books.is_away, (claim, *holders))) or self.books.is_uncertain(claim):
                return
            if any(map(self.books.is_kept, holders)):
                return
            self._up()
            self._wait_for_healed([claim, *holders])
            self._note(claim)
            answers = self.stage.run(self._handed_over(claim, holders))
            assert not answers[claim.ref.uid].error, answers[claim.ref.uid].error
            for holder in holders:
                self.books.forget(holder)
                self._let_go(holder)
            self._take([claim], answers)
            self.done["handed over"] += 1

    @rule(claims=strategies.lists(claims, min_size=1, max_size=2, unique=True))
    def unprepare(self, claims: list[ModelClaim]) -> None:
        with self._expected():
            self._up()
            self._wait_for_healed(claims)
            errors = self.stage.run(self._unprepared(claims))
            if any(map(self.books.is_kept, claims)):
                errors = self.stage.run(self._let_go_by_monitors(claims, errors))
            for claim in claims:
                assert not errors[claim.ref.uid], f"{claim} could not be unprepared: {errors}"
                is_left = self.books.is_away(claim) or self.books.is_kept(claim)
                self.done["left over"] += claim in self.books.prepared and is_left
                self.books.forget(claim)
                self._let_go(claim)
                self.done["unprepared"] += 1

    @rule(claim=claims)
    def lose_the_unprepare(self, claim: ModelClaim) -> None:
        """The kubelet forgets the claim and never calls for it again."""
        self.done["lost unprepare"] += claim in self.books.prepared
        self._let_go(claim)

    # What happens to the process and to the node

    @rule(
        how=strategies.sampled_from(("crash", "restart", "reboot", "other minors")),
        minors=strategies.permutations(AS_LISTED),
    )
    def end(self, how: str, minors: list[int]) -> None:
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
            if how == "other minors":
                self._boot_with(minors)
            if how != "crash":
                self._reboot(AS_LISTED)

    def _boot_with(self, minors: Sequence[int]) -> None:
        """A boot in which GPUs have other minor numbers: each claim still has the same GPU.

        GPUs that no claim holds have other names in it, so it ends before anything else happens.
        """
        self._reboot(minors)
        healed, self.healed = self.healed, set()  # the slices have other names than the books
        self.stage.run(self.lane.start_renumbered())
        self.stage.run(self._agree())
        for claim in sorted(self.books.prepared, key=lambda claim: claim.ref.name):
            if not self.books.is_orphan(claim):
                self.prepare_one(claim)
        self.stage.run(self.lane.kill())
        self.healed = healed

    def _reboot(self, minors: Sequence[int]) -> None:
        """Reboot the node, whose GPUs have these minor numbers then."""
        self._heard(self.incidents.end_by_reboot)
        self.stage.pods.reboot()
        if tuple(minors) != self.minors:
            self.minors = tuple(minors)
            self.lane.renumber(minors)
        self.lane.reboot()
        self._divide_gpu()

    @rule(
        gpu=strategies.sampled_from(USED_GPUS),
        incident=strategies.sampled_from(tuple(Incident)),
        may_heal=strategies.booleans(),
    )
    def disturb_or_heal(self, gpu: str, incident: Incident, may_heal: bool) -> None:
        """Let something happen to a GPU, or let one recover: this one, if it needs to."""
        ill = sorted(self.incidents.present, key=lambda each: (each != gpu, each))
        if ill and (may_heal or ill[0] == gpu):
            self.done["healing"] += 1
            self._heard(lambda: self.incidents.heal(ill[0]))
            return
        if gpu == DIVIDED and incident is Incident.UNPLUGGED:
            return  # the MIG devices of an administrator do not come back with their GPU
        if incident in ANSWERS_ERRORS and self.lane.process is None:
            return  # test_health_taints.py has what a plugin does that starts then
        with self._expected():
            self.done[incident.value] += 1
            self._heard(lambda: self.incidents.cause(gpu, incident))

    # What must be true at any time

    @invariant()
    def the_records_are_those_of_the_books(self) -> None:
        with self._expected():
            self.done["step"] += 1
            records = node_checks.records(self.lane)
            self.books.check_records(records, node_checks.started_claims(self.lane))
            for claim in self.books.prepared:
                held = json.loads(records[claim.ref.uid])["devices"]
                recorded = tuple(each["device"] for each in held)
                assert recorded == claim.devices, f"{claim} is recorded with {recorded}"

    @invariant()
    def hardware_specs_and_daemons_are_as_the_prepared_claims_want_them(self) -> None:
        if self.lane.process is None or self.healed:
            return
        with self._expected():
            self.stage.run(self._agree())

    @contextlib.contextmanager
    def _expected(self) -> Iterator[None]:
        """What fails in here leaves nothing that the end of the sequence could judge."""
        self.is_broken = True
        try:
            yield
        except BaseException:
            self.failures.append(traceback.format_exc())
            raise
        self.is_broken = False

    def teardown(self) -> None:
        if not self.is_broken:
            with self._expected():
                self._end()
            self.lane.is_dirty = False

    def _end(self) -> None:
        """Every claim that is held is answered as before, then let go: the node is as new."""
        self._up()
        if self.incidents.present:
            self.stage.run(self._publish())
        for gpu in [*self.incidents.present]:
            self._heard(functools.partial(self.incidents.heal, gpu))
        self._wait_until_used()
        self.stage.run(self._agree())
        for claim in sorted(self.books.prepared, key=lambda claim: claim.ref.name):
            if not self.books.is_orphan(claim):
                self.prepare_one(claim)
        self.the_records_are_those_of_the_books()
        errors = self.stage.run(self._unprepared(self.everything))
        assert not any(errors.values()), errors
        self.stage.run(self.lane.wait_until(self.stage.pods.is_clean, "daemons to be deleted"))
        self.lane.may_lack = {*filter(self.incidents.may_keep_mode, self.lane.tested.devices)}
        self.stage.run(node_checks.check_nothing_prepared(self.lane, GPUS))
        found = node_agreement.found_modes(self.lane.node, USED_GPUS)
        as_new = {**dict.fromkeys(GPUS, GpuModes()), DIVIDED: DIVIDED_AS_NEW}
        assert found == as_new, f"released, and the GPUs have {found}"
        for claim in [*self.books.existing]:
            self.lane.delete_claim(claim.ref)

    def _created(
        self,
        name: str,
        devices: tuple[str, ...],
        is_admin: bool,
        *,
        is_share: bool = False,
        interval: str = "",
        has_daemon: bool = False,
        hostile: str = "",
    ) -> ModelClaim:
        config: Sequence[Mapping[str, Any]] = plugin.shared_by_time(interval) if interval else ()
        if hostile:
            parameters, _ = extreme_json.PARAMETERS[hostile]
            config = [plugin.opaque_config(RawJson(parameters))]
        if has_daemon:
            is_mig = "-mig-" in devices[0]
            config = plugin.shared_by_mps("MigDeviceConfig" if is_mig else "GpuConfig")
            self.done["MPS on a MIG device" if is_mig else "MPS"] += 1
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
        made = tuple(each for each in devices if "-mig-" in each and each != STATIC)
        claim = ModelClaim(
            ref, devices, is_admin, shares, interval, has_daemon, made, bool(hostile)
        )
        self.done["share"] += len(shares)
        self.done["time slice"] += bool(interval)
        self.done["MIG device"] += len(made)
        self.done["static MIG device"] += STATIC in devices
        self.done["hostile"] += bool(hostile)
        self.everything.append(claim)
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
            self.lane.may_lack = {
                each
                for each in self.lane.tested.devices
                if claim_model.gpu_of(each) in self.books.away
            }
            self.stage.run(self.lane.start())
            self.incidents.note_start()

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

    async def _unprepared(self, claims: list[ModelClaim]) -> Mapping[str, str]:
        """The errors of an unprepare, by claim; empty where there is none."""
        answers = await self.lane.dra.unprepare([claim.ref for claim in claims])
        return {uid: str(answer.error) for uid, answer in answers.items()}

    async def _let_go_by_monitors(
        self, claims: list[ModelClaim], errors: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Repeat an unprepare while a monitor may be a process that ends."""
        deadline = time.monotonic() + KEPT_S
        while any(errors.values()) and time.monotonic() < deadline:
            for claim in claims:
                error = errors[claim.ref.uid]
                assert not error or (self.books.is_kept(claim) and "DCGM" in error), (claim, error)
            await asyncio.sleep(RETRY_S)
            errors = await self._unprepared(claims)
        return errors

    async def _agree(self) -> None:
        """Wait until hardware, daemons and CDI specs are as the prepared claims want them."""
        await self._find_none(
            lambda: node_agreement.find_problem(
                self.lane, self.stage.pods, self.books, USED_GPUS, [STATIC]
            )
        )

    async def _publish(self) -> None:
        """Wait until the slices offer what works, with the taints of what does not."""
        await self._find_none(
            lambda: self.incidents.find_problem(
                node_agreement.offered_taints(self.lane), {*self.lane.tested.devices}
            )
        )

    async def _find_none(
        self, find_problem: Callable[[], str], timeout_s: float = AGREED_S
    ) -> None:
        """Wait until there is no problem."""
        problem = ""

        def is_solved() -> bool:
            nonlocal problem
            problem = find_problem()
            return not problem

        try:
            await self.lane.wait_until(is_solved, "agreement", timeout_s)
        except AssertionError as error:
            if problem:
                error.add_note(problem)
            raise

    def _heard(self, change: Callable[[], None]) -> None:
        """Change the GPUs, and note which do not work now and which work again."""
        before = self.books.away
        change()
        self.books.away, self.books.monitored = self.incidents.away, self.incidents.monitored
        self.healed = (self.healed | before) - self.books.away

    def _wait_for_healed(self, claims: list[ModelClaim]) -> None:
        """Wait until the plugin knows that GPUs of these claims work again."""
        if any(claim.gpus & self.healed for claim in claims):
            self._wait_until_used()

    def _wait_until_used(self) -> None:
        """Wait until the plugin has noticed that GPUs work again: until it lets them be watched.

        The claims wake it, as the kubelet's retries do.
        """
        self.stage.run(self._publish())
        while self.healed:
            gpu = self.healed.pop()
            self.stage.run(self._watch(STATIC if gpu == DIVIDED else gpu))

    async def _watch(self, device: str) -> None:
        """Prepare a claim with admin access until it is answered, and unprepare it."""
        claim = plugin.create_allocated_claim(
            self.lane.server, self.lane.node.name, [device], admin=True
        )
        async with asyncio.timeout(AGREED_S):
            while error := (await self.lane.dra.prepare([claim]))[claim.uid].error:
                assert error.startswith((*claim_model.NOT_WORKING_REASONS, *TOO_LATE)), error
                await asyncio.sleep(RETRY_S)
        await self.lane.dra.unprepare([claim])
        self.lane.delete_claim(claim)

    def _divide_gpu(self) -> None:
        """Make the administrator's MIG device, as a service does after each boot."""
        gpu = int(DIVIDED.removeprefix("gpu-"))
        if (
            STATIC_PLACE
            not in node_agreement.found_modes(self.lane.node, [DIVIDED])[DIVIDED].instances
        ):
            self.lane.node.nvidia_smi("-i", str(gpu), "-mig", "1")
            self.lane.node.make_mig_device(gpu, *STATIC_PLACE)

    async def _handed_over(
        self, claim: ModelClaim, holders: list[ModelClaim]
    ) -> dict[str, PrepareAnswer]:
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(self._asked([claim], LONG_S))
            await asyncio.sleep(WAIT_S)
            errors = await self._unprepared(holders)
        assert not any(errors.values()), errors
        return waiting.result()


class PassingNode(Node):
    """A node whose GPUs go to virtual machines, too."""

    claims = Node.claims
    of_machines = Bundle("of_machines")
    repetitions = 3

    def __init__(self, stage: ThreadedSandbox, *arguments: Any) -> None:
        self.users = GpuUsers(stage.sandbox)
        if stage.sandbox.is_dirty:  # GPUs may have other minor numbers, which are in their names
            stage.run(stage.sandbox.kill())
            stage.sandbox.reboot()
        super().__init__(stage, *arguments)

    @initialize(
        targets=(claims, of_machines),
        wanted=strategies.lists(PASSED_DEVICES, min_size=3, max_size=3),
    )
    def begin(self, wanted: list[list[str]]) -> MultipleResults[ModelClaim]:
        return multiple(*map(self._created_for_machine, wanted))

    @rule(targets=(claims, of_machines), devices=PASSED_DEVICES)
    def create_for_machine(self, devices: list[str]) -> ModelClaim:
        return self._created_for_machine(devices)

    def _created_for_machine(self, devices: list[str]) -> ModelClaim:
        claim = self._created("", tuple(devices), is_admin=False)
        self.done["vfio device"] += len(claim.passed)
        return claim

    @rule(claim=of_machines)
    def start_machine(self, claim: ModelClaim) -> None:
        """Prepare a claim, and start a virtual machine with its GPUs."""
        self.prepare_one(claim)
        if claim not in self.books.prepared or self.books.is_orphan(claim):
            return
        with self._expected():
            self.stage.run(self._agree())
            for gpu in map(claim_model.gpu_of, claim.passed):
                if gpu not in self.users.machines:
                    self.users.start_machine(gpu)
                    self.done["virtual machine"] += 1
        self._note_users()

    @rule(gpu=strategies.sampled_from(GPUS))
    def end_machine_or_program(self, gpu: str) -> None:
        if gpu in self.users.machines:
            self.users.end_machine(gpu)
        if gpu in self.users.programs:
            self.users.close_node(gpu)
        self._note_users()

    @rule(gpu=strategies.sampled_from(GPUS))
    def open_node(self, gpu: str) -> None:
        """A program opens a device node, if the GPU has one."""
        if gpu not in self.users.programs and self.users.open_node(gpu):
            self.done["program"] += 1
        self._note_users()

    def _is_late(self, claim: ModelClaim, error: str, *, is_doubtful: bool) -> bool:
        """A switch may take longer than the plugin keeps NVML closed, and goes on.

        What takes long is not in vain, so that nothing is left to doubt.
        """
        del is_doubtful
        return error.startswith(TOO_LATE) or (bool(claim.passed) and "has not returned" in error)

    @rule(claim=of_machines)
    def unprepare_one(self, claim: ModelClaim) -> None:
        self.unprepare([claim])

    @rule(claims=strategies.lists(claims, min_size=1, max_size=2, unique=True))
    def unprepare(self, claims: list[ModelClaim]) -> None:
        """Unprepare claims: in vain while a virtual machine has a GPU of one of them."""
        late = [each for each in claims if each in self._held and self.books.is_lent(each)]
        with self._expected():
            if late:
                self._up()
                errors = self.stage.run(self._unprepared(late))
                for claim in late:
                    error = errors[claim.ref.uid]
                    assert error.startswith("VfioDeviceBusy: "), f"{claim} is in use: {error}"
                    self.books.forget(claim)
                    self.done["machine outlives claim"] += 1
        if not late:
            super().unprepare(claims)

    @rule(
        how=strategies.sampled_from(("crash", "restart", "reboot")),
        minors=strategies.just(list(AS_LISTED)),
    )
    def end(self, how: str, minors: list[int]) -> None:
        if how == "reboot" and self.lane.process is not None:
            self.users.end_all()
            self._note_users()
        super().end(how, minors)

    def disturb_or_heal(self, gpu: str, incident: Incident, may_heal: bool) -> None:
        """No rule: GPUs do not fail here."""

    def create_shares(
        self, gpus: list[str], number: int, interval: str
    ) -> MultipleResults[ModelClaim]:
        """No rule: there is more of the others."""
        raise NotImplementedError

    def teardown(self) -> None:
        self.users.end_all()
        self._note_users()
        super().teardown()

    def _end(self) -> None:
        super()._end()
        assert self.users.overrides() == {"(null)"}, "a driver_override is left"
        wrong = self.users.find_wrong_name()
        assert not wrong, wrong

    @property
    def _held(self) -> set[ModelClaim]:
        return self.books.prepared | self.books.undoing

    def _note_users(self) -> None:
        self.books.lent, self.books.opened = {*self.users.machines}, {*self.users.programs}


def run(kind: type[Node], stage: ThreadedSandbox, batches: Queue[int], done: Counter[str]) -> None:
    """Run batches of sequences, by their seeds, until there are none left; then no taint is left.

    A GPU that has healed keeps its taint for a while, which the next sequence does not wait for.
    """
    incidents = GpuIncidents(stage.sandbox.node)
    failures: list[str] = []
    settings = hypothesis.settings(
        max_examples=BATCH,
        stateful_step_count=STEPS,
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
                here = functools.partial(kind, stage, incidents, done, failures)
                run_state_machine_as_test(
                    cast("type[Node]", hypothesis.seed(seed)(here)), settings=settings
                )
            except BaseException as error:
                # Hypothesis repeats what failed, and if that does not, says only that it differs.
                for failure in failures:
                    error.add_note(failure)
                error.add_note(f"--sequences={BATCH} --sequences-seed={seed} runs this batch alone")
                with batches.mutex:
                    batches.queue.clear()
                raise
    incidents.healed_at.clear()
    stage.run(stage.sandbox.wait_until(lambda: not any_taint(stage), "the taints to go", LINGERS_S))


def any_taint(stage: ThreadedSandbox) -> bool:
    return any(node_agreement.offered_taints(stage.sandbox).values())


@pytest.mark.timeout(0)
def test_whatever_happens_in_whatever_order_nobody_loses_a_gpu_and_no_gpu_has_two_holders(
    server: ApiServer, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    sequences = pytestconfig.getoption("--sequences", default=USUAL_SEQUENCES)
    seed = pytestconfig.getoption("--sequences-seed", default=4)
    done: Counter[str] = Counter()
    batches: Queue[int] = Queue()
    passing: Queue[int] = Queue()
    passing_stages = PASSING_STAGES if sequences > USUAL_SEQUENCES else 0
    for batch in range(seed, seed - (-sequences // BATCH)):
        is_passing = passing_stages and batch % PASSING_SHARE == PASSING_SHARE - 1
        (passing if is_passing else batches).put(batch)
    with (
        threaded_sandboxes.open_sandboxes(server, STAGES, TESTED, flags(*GATES)) as opened,
        threaded_sandboxes.open_sandboxes(
            server, passing_stages, PASSING, flags(*GATES, "PassthroughSupport")
        ) as opened_passing,
        ThreadPoolExecutor(STAGES + passing_stages) as threads,
    ):
        runs = [
            *(threads.submit(run, Node, stage, batches, done) for stage in opened),
            *(threads.submit(run, PassingNode, stage, passing, done) for stage in opened_passing),
        ]
        try:
            for each in as_completed(runs):
                each.result()
        finally:
            counts = ", ".join(f"{kind} {count}" for kind, count in sorted(done.items()))
            with capsys.disabled():
                sys.stdout.write(f"\nseeds from {seed}: {counts}\n")
    assert done["sequence"] >= sequences
