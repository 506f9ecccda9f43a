# SPDX-License-Identifier: Apache-2.0
"""When a daemon asks the API server to write its entry itself, and what it reads before."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from nvdra_api.ids import CliqueID, DomainUID, NodeName, PodUID
from nvdra_api.meta import JsonObject
from nvdra_imex_daemon.membership.announcer import DEPUTIES_PER_S, DEPUTY_AFTER_S, Announcer
from nvdra_imex_daemon.membership.entries import MemberIdentity, MemberStatus
from nvdra_imex_daemon.membership.member_list import MemberList, NotListedYet
from nvdra_imex_daemon.membership.member_store import CliqueMemberStore, Pod
from nvdra_imex_daemon.membership.read_pace import COST_OF_ONE, FREE_CHANGES
from nvdra_testing import virtual_time
from nvdra_testing.faults import recorded_api
from nvdra_testing.faults.recorded_api import Answer, RecordedApi, Request

CLIQUE = CliqueID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2")
DOMAIN = DomainUID("11111111-2222-3333-4444-555555555555")
POD = Pod("nvdra", "daemon-x7k2p", "0a0a0a0a-0000-4000-8000-00000000000a")
MAX_NODES = 18
US = MemberIdentity(CLIQUE, NodeName("node-us"), "10.4.1.7", PodUID(POD.uid), MAX_NODES)
STARTING, READY = MemberStatus(is_ready=False, message="starting"), MemberStatus(is_ready=True)
STORE = CliqueMemberStore(DOMAIN, US, POD)
OBJECT = f"{STORE.collection}/{STORE.name}"
CREATE, READ = f"POST {STORE.collection}", f"GET {OBJECT}"
REPLACE, PATCH = f"PUT {OBJECT}", f"PATCH {OBJECT}"
PATCH_POD = f"PATCH /api/v1/namespaces/nvdra/pods/{POD.name}"
CONFLICT = recorded_api.status(409, "Conflict")
SPREAD_S = MAX_NODES / DEPUTIES_PER_S


def clique(version: int, members: int) -> JsonObject:
    metadata = {"name": STORE.name, "namespace": "nvdra", "uid": "c", "resourceVersion": version}
    entries = [
        {"nodeName": f"node-{n}", "ipAddress": f"10.4.2.{n}", "cliqueID": CLIQUE, "index": n}
        for n in range(members)
    ]
    return {"metadata": {**metadata, "resourceVersion": str(version)}, "daemons": entries}


def listing(*objects: JsonObject) -> Answer:
    return 200, {"metadata": {"resourceVersion": "1"}, "items": list(objects)}


class Answers:
    """Refuses writes as the test says, and stores the others."""

    def __init__(self, stored: JsonObject | None = None, *refusals: Answer) -> None:
        self.stored = stored
        self.refusals = list(refusals)

    def __call__(self, request: Request) -> Answer:
        if request.line in (CREATE, REPLACE, PATCH):
            if self.refusals:
                return self.refusals.pop(0)
            self.stored = self._written(request.body)
        elif request.line == f"GET {STORE.collection}":
            return listing(*([self.stored] if self.stored else []))
        return 200, self.stored or {}

    def _written(self, body: Any) -> JsonObject:
        if isinstance(body, list):  # a patch of our entry, which is the only one
            assert self.stored is not None
            return {**self.stored, "daemons": [body[1]["value"]]}
        return {**body, "metadata": {**body["metadata"], "uid": "c", "resourceVersion": "100"}}


def run(answers: Answers, main: Callable[[RecordedApi, MemberList], Awaitable[Any]]) -> None:
    async def started() -> None:
        api = RecordedApi(answers)
        announcer = Announcer(api, POD, CLIQUE, MAX_NODES, lambda: None, 1_800_000_000)
        members = MemberList(api, STORE, US, lambda _: None, announcer=announcer)
        async with members.running():
            await members.changed_since(0)
            await main(api, members)

    virtual_time.run_with_virtual_time(started)


async def joined(members: MemberList, status: MemberStatus) -> None:
    """Report until we are listed, each time when it is due."""
    while True:
        try:
            await members.report(status)
        except NotListedYet:
            await asyncio.sleep(members.recheck_in_s)
        else:
            return


def test_a_daemon_joins_by_itself_at_its_turn() -> None:
    async def main(api: RecordedApi, members: MemberList) -> None:
        await joined(members, STARTING)
        assert api.lines("PATCH", "POST", "PUT") == [PATCH_POD, CREATE]
        assert DEPUTY_AFTER_S <= api.sent(CREATE).time <= DEPUTY_AFTER_S + SPREAD_S

    run(Answers(), main)


def test_after_a_conflict_it_does_not_write_at_once_again_but_waits_for_another_turn() -> None:
    waits: list[tuple[float, float]] = []

    async def main(api: RecordedApi, members: MemberList) -> None:
        await joined(members, STARTING)
        first, second, third = (each.time for each in api.requests if each.line == CREATE)
        waits.append((second - first, third - second))

    for _ in range(20):  # turns are random
        run(Answers(None, CONFLICT, CONFLICT), main)
    assert 1.0 < max(first for first, _ in waits) <= SPREAD_S
    assert 1.0 < max(second for _, second in waits) <= 2 * SPREAD_S


def test_what_it_knows_is_read_again_before_it_joins_if_it_did_not_receive_every_write() -> None:
    answers = Answers(clique(1, 1))

    async def main(api: RecordedApi, members: MemberList) -> None:
        with pytest.raises(NotListedYet):
            await members.report(STARTING)
        await asyncio.sleep(members.recheck_in_s - 0.2)
        for number in range(2, 2 + int(FREE_CHANGES)):
            api.push(STORE.collection, "MODIFIED", clique(number, number))
            await asyncio.sleep(0.01)
        assert len(members.entries()) <= 1 + FREE_CHANGES / COST_OF_ONE
        answers.stored = clique(99, MAX_NODES - 1)
        await joined(members, STARTING)
        assert api.lines("GET", "PUT")[-2:] == [READ, REPLACE]
        (own,) = (each for each in members.entries() if each["nodeName"] == US.node)
        assert own["index"] == MAX_NODES - 1

    run(answers, main)


def test_of_its_own_writes_a_daemon_receives_what_comes_after_them_at_once() -> None:
    async def main() -> None:
        api = RecordedApi(Answers())
        members = MemberList(api, STORE, US, lambda _: None)
        async with members.running():
            await members.changed_since(0)
            for _ in range(int(FREE_CHANGES)):
                await members.report(STARTING)
                await members.report(READY)
            for number in (2, 3):
                serial = members.change_count
                api.push(STORE.collection, "MODIFIED", clique(200 + number, number))
                async with asyncio.timeout(0.01):
                    await members.changed_since(serial)
                assert len(members.entries()) == number

    virtual_time.run_with_virtual_time(main)


@pytest.mark.parametrize("refusal", [CONFLICT, recorded_api.status(422, "Invalid")])
def test_readiness_that_meets_another_write_is_written_again_soon(refusal: Answer) -> None:
    answers = Answers()

    async def main(api: RecordedApi, members: MemberList) -> None:
        await joined(members, STARTING)
        answers.refusals.append(refusal)
        await members.report(READY)
        first, second = (each.time for each in api.requests if each.line == PATCH)
        assert second - first < 1.0
        assert [each["status"] for each in members.entries()] == ["Ready"]

    run(answers, main)


def test_after_a_kill_the_members_are_known_with_an_entry_that_is_right_already() -> None:
    entry = {
        "nodeName": US.node,
        "ipAddress": US.ip,
        "cliqueID": CLIQUE,
        "index": 2,
        "status": "NotReady",
        "message": "starting",
        "podUID": US.pod_uid,
    }
    stored = STORE.completed(None, [entry])
    stored["metadata"] |= {"resourceVersion": "7", "uid": "clique"}

    def answer(request: Request) -> Answer:
        assert request.line.startswith("GET "), "nothing is to be written"
        return 200, stored

    async def main() -> None:
        members = MemberList(RecordedApi(answer), STORE, US, lambda _: None)
        assert await members.report(STARTING) == 2
        assert members.entries() == [entry]  # though nothing is watched yet

    virtual_time.run_with_virtual_time(main)
