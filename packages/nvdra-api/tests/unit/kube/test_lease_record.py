# SPDX-License-Identifier: Apache-2.0
"""The lease machine: who may take it, what is written; nobody compares two machines' clocks."""

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from nvdra_runtime.kube import lease_record
from nvdra_runtime.kube.lease_record import ObservedLease

WALL = datetime(2026, 1, 1, tzinfo=UTC)


def lease(
    holder: str, version: int = 1, duration_s: int = 15, transitions: int = 3
) -> dict[str, Any]:
    return {
        "metadata": {"name": "l", "namespace": "n", "resourceVersion": str(version)},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": duration_s,
            "acquireTime": "2025-01-01T00:00:00.000000Z",
            "leaseTransitions": transitions,
        },
    }


def test_a_lease_that_is_not_there_or_held_by_nobody_may_be_taken() -> None:
    assert lease_record.can_acquire(ObservedLease(), "a", 0)
    assert lease_record.can_acquire(ObservedLease(lease(""), 0), "a", 0)
    assert lease_record.can_acquire(ObservedLease(lease("a"), 0), "a", 0)


def test_a_lease_of_another_may_be_taken_when_it_was_silent_for_its_duration() -> None:
    seen = lease_record.observe(ObservedLease(), lease("b"), 100)
    assert not lease_record.can_acquire(seen, "a", 114.9)
    assert lease_record.can_acquire(seen, "a", 115)

    renewed = lease_record.observe(seen, lease("b", version=2), 110)
    assert not lease_record.can_acquire(renewed, "a", 115)
    unchanged = lease_record.observe(seen, lease("b"), 110)
    assert lease_record.can_acquire(unchanged, "a", 115)


def test_only_a_process_of_the_same_pod_takes_a_lease_at_once() -> None:
    pod, other = "pod-0f0f-", "pod-1e1e-"
    held = ObservedLease(lease(f"{pod}former"), 100)
    assert lease_record.can_acquire(held, f"{pod}next", 100, predecessors=pod)
    assert not lease_record.can_acquire(held, f"{other}next", 100, predecessors=other)
    assert not lease_record.can_acquire(held, f"{pod}next", 100)


def test_taking_over_counts_as_a_transition_and_renewing_does_not() -> None:
    taken = lease_record.acquired_lease(ObservedLease(lease("b"), 0), "a", 15, WALL, "n", "l")[
        "spec"
    ]
    assert (taken["holderIdentity"], taken["leaseTransitions"]) == ("a", 4)
    assert taken["acquireTime"] == taken["renewTime"] == "2026-01-01T00:00:00.000000Z"

    renewed = lease_record.acquired_lease(ObservedLease(lease("a"), 0), "a", 15, WALL, "n", "l")
    assert renewed["spec"]["leaseTransitions"] == 3
    assert renewed["spec"]["acquireTime"] == "2025-01-01T00:00:00.000000Z"
    assert renewed["metadata"]["resourceVersion"] == "1"


def test_a_first_lease_is_made_whole() -> None:
    made = lease_record.acquired_lease(ObservedLease(), "a", 15, WALL, "n", "l")

    assert made["metadata"] == {"namespace": "n", "name": "l"}
    assert made["spec"]["leaseTransitions"] == 0
    assert made["spec"]["leaseDurationSeconds"] == 15


def test_a_lease_that_is_given_back_can_be_taken_at_once() -> None:
    released = lease_record.released_lease(ObservedLease(lease("a"), 0), WALL, "n", "l")

    assert released["spec"]["holderIdentity"] == ""
    assert released["spec"]["leaseDurationSeconds"] == 1
    assert released["spec"]["leaseTransitions"] == 3
    assert lease_record.can_acquire(ObservedLease(released, 0), "b", 0)


@dataclass
class Server:
    """Stores one lease, with optimistic concurrency."""

    stored: dict[str, Any] | None = None
    version: int = 0

    def write(self, body: dict[str, Any]) -> bool:
        have = self.stored and self.stored["metadata"]["resourceVersion"]
        if body["metadata"].get("resourceVersion") != have:
            return False
        self.version += 1
        metadata = {**body["metadata"], "resourceVersion": str(self.version)}
        self.stored = {**body, "metadata": metadata}
        return True


@dataclass
class Process:
    """One contender: looks and writes; believes in its lease for the renew deadline."""

    name: str
    seen: ObservedLease = field(default_factory=ObservedLease)
    works_until: float = -1.0

    def look(self, server: Server, now: float) -> None:
        self.seen = lease_record.observe(self.seen, server.stored, now)

    def write(self, server: Server, began: float) -> None:
        if not lease_record.can_acquire(self.seen, self.name, began):
            return
        if server.write(lease_record.acquired_lease(self.seen, self.name, 15, WALL, "n", "l")):
            self.works_until = began + 10


@given(st.lists(st.floats(0.1, 9), max_size=80), st.randoms(use_true_random=False))
def test_never_do_two_processes_believe_that_they_hold_it(
    pauses: list[float], chance: random.Random
) -> None:
    server, now = Server(), 0.0
    processes = [Process("a"), Process("b"), Process("c")]
    for pause in pauses:
        now += pause
        process = chance.choice(processes)
        process.look(server, now)
        if chance.random() < 0.2:  # somebody else is faster between a look and a write
            chance.choice(processes).look(server, now)
        process.write(server, now)
        assert sum(each.works_until > now for each in processes) <= 1
