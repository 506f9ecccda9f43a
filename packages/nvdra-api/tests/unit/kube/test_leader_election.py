# SPDX-License-Identifier: Apache-2.0
"""Who wins a race for the Lease: the process whose write the API server took, and no other."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from nvdra_api.meta import JsonObject
from nvdra_runtime.kube import leader_election
from nvdra_runtime.kube.leader_election import LeaderElectionSettings, LeaderElector
from nvdra_testing import virtual_time
from nvdra_testing.faults import recorded_api
from nvdra_testing.faults.recorded_api import Answer, RecordedApi, Request

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
GET, POST, PUT = f"GET {LEASES}/lead", f"POST {LEASES}", f"PUT {LEASES}/lead"
NOW = datetime(2026, 8, 1, tzinfo=UTC)
SETTINGS = LeaderElectionSettings(
    "default", "lead", duration_s=15, renew_deadline_s=10, retry_period_s=2
)


def lease(version: int, holder: str) -> JsonObject:
    return {
        "metadata": {"name": "lead", "namespace": "default", "resourceVersion": str(version)},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15},
    }


@dataclass
class Leases:
    """One Lease, as the API server has it; `other` writes it between our read and our write."""

    stored: JsonObject | None = None
    refused: Answer | None = None
    other: list[JsonObject] = field(default_factory=list)

    def answer(self, request: Request) -> Answer:
        if request.line == GET:
            found = self.stored
            return (200, found) if found else recorded_api.status(404, "NotFound")
        assert request.line in (POST, PUT)
        if self.other:
            self.stored = self.other.pop(0)
            return recorded_api.status(409, "Conflict")
        if self.refused is not None:
            return self.refused
        version = 1 if self.stored is None else int(self.stored["metadata"]["resourceVersion"]) + 1
        metadata = {**request.body["metadata"], "resourceVersion": str(version)}
        self.stored = {**request.body, "metadata": metadata}
        return 200, self.stored

    def holder(self) -> str:
        assert self.stored is not None
        return str(self.stored["spec"]["holderIdentity"])


def run(leases: Leases, main: Any) -> Any:
    async def started() -> Any:
        api = RecordedApi(leases.answer)
        return await main(api, LeaderElector(api, SETTINGS, "us", lambda: NOW))

    return virtual_time.run_with_virtual_time(started)


@pytest.mark.parametrize("before", [None, lease(4, "")], ids=["no lease", "a released lease"])
def test_a_conflict_on_the_lease_is_lost_and_the_winner_is_waited_for(
    before: JsonObject | None,
) -> None:
    leases = Leases(stored=before, other=[lease(5, "them")])

    async def main(api: RecordedApi, elector: LeaderElector) -> None:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            acquiring = group.create_task(elector.acquire(stop))
            await asyncio.sleep(10)  # their lease is valid for 15 s
            assert not acquiring.done()
            assert not elector.is_leader
            assert elector.holder == leases.holder() == "them"
            await asyncio.sleep(20)
            assert acquiring.result(), "their lease has expired"
        assert elector.is_leader
        assert leases.holder() == elector.identity
        assert api.lines()[:2] == [GET, PUT if before else POST]

    run(leases, main)


def test_a_leader_whose_renewal_meets_a_conflict_stops_at_once() -> None:
    leases = Leases()

    async def main(_: RecordedApi, elector: LeaderElector) -> None:
        assert await elector.acquire(asyncio.Event())
        leases.other.append(lease(9, "them"))
        began = asyncio.get_running_loop().time()
        await elector.renew()
        assert asyncio.get_running_loop().time() == pytest.approx(began + 2)
        assert elector.lost.is_set()
        assert not elector.is_leader

    run(leases, main)


def test_of_two_processes_of_a_pod_the_second_leads_and_the_first_stops() -> None:
    async def main(api: RecordedApi, _: LeaderElector) -> None:
        first, second = (LeaderElector(api, SETTINGS, "us", lambda: NOW, "0f0f") for _ in "12")
        other = LeaderElector(api, SETTINGS, "us", lambda: NOW, "1e1e")
        stop = asyncio.Event()
        assert await first.acquire(stop)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(other.acquire(stop))
            began = asyncio.get_running_loop().time()
            assert await second.acquire(stop)
            await first.renew()
            assert first.lost.is_set()
            assert asyncio.get_running_loop().time() == pytest.approx(began + 2)
            assert not waiting.done()
            waiting.cancel()
        assert second.is_leader

    run(Leases(), main)


@pytest.mark.parametrize("times", [1, 3])
def test_a_leader_goes_on_if_somebody_changed_something_else_of_its_lease(times: int) -> None:
    leases = Leases()

    async def main(_: RecordedApi, elector: LeaderElector) -> None:
        assert await elector.acquire(asyncio.Event())
        leases.other += [lease(9 + number, elector.identity) for number in range(times)]
        async with leader_election.hold(elector):
            await asyncio.sleep(30)
            assert elector.is_leader
            assert not elector.lost.is_set()
            assert leases.other == []
            assert leases.stored is not None
            assert int(leases.stored["metadata"]["resourceVersion"]) > 20

    run(leases, main)


def test_a_leader_that_meets_nothing_but_conflicts_stops_before_its_lease_expires() -> None:
    leases = Leases()

    async def main(_: RecordedApi, elector: LeaderElector) -> float:
        assert await elector.acquire(asyncio.Event())
        leases.other += [lease(9 + number, elector.identity) for number in range(100)]
        began = asyncio.get_running_loop().time()
        await elector.renew()
        assert elector.lost.is_set()
        return asyncio.get_running_loop().time() - began

    assert SETTINGS.renew_deadline_s <= run(leases, main) < SETTINGS.duration_s


def test_a_leader_that_cannot_renew_stops_before_its_lease_expires() -> None:
    leases = Leases()

    async def main(_: RecordedApi, elector: LeaderElector) -> float:
        assert await elector.acquire(asyncio.Event())
        leases.refused = recorded_api.status(500, "Internal")
        began = asyncio.get_running_loop().time()
        await elector.renew()
        assert elector.lost.is_set()
        return asyncio.get_running_loop().time() - began

    assert SETTINGS.renew_deadline_s <= run(leases, main) < SETTINGS.duration_s


def test_the_lease_is_renewed_as_its_holder_and_released_for_the_next() -> None:
    leases = Leases()

    async def main(api: RecordedApi, elector: LeaderElector) -> None:
        assert await elector.acquire(asyncio.Event())
        assert (elector.is_leader, elector.holder) == (True, elector.identity)
        async with leader_election.hold(elector):
            await asyncio.sleep(5)
        assert api.lines() == [GET, POST, *(GET, PUT) * 2, GET, PUT]
        assert leases.stored is not None
        assert leases.stored["spec"] == {
            "holderIdentity": "",
            "leaseDurationSeconds": 1,
            "acquireTime": "2026-08-01T00:00:00.000000Z",
            "renewTime": "2026-08-01T00:00:00.000000Z",
            "leaseTransitions": 0,
        }
        assert not elector.is_leader

    run(leases, main)


def test_a_lease_that_somebody_else_holds_is_not_released() -> None:
    leases = Leases()

    async def main(_: RecordedApi, elector: LeaderElector) -> None:
        assert await elector.acquire(asyncio.Event())
        leases.stored = lease(9, "them")
        await elector.release()
        assert leases.holder() == "them"

    run(leases, main)
