# SPDX-License-Identifier: Apache-2.0
"""The crash campaign's reading of a controller's calls, on which its completeness rests."""

from nvdra_testing.crash_campaigns import api_writes, points, traced_requests
from nvdra_testing.crash_campaigns.api_writes import ApiWrite
from nvdra_testing.crash_campaigns.points import KillPoint
from nvdra_testing.crash_campaigns.traced_requests import TracedRequest
from nvdra_testing.faults import strace
from nvdra_testing.faults.strace import MAIN

NODE = points.TraceNames("/lane", 6443)
UID = "f639ec32-f447-49fd-94aa-4df9528c4f33"
WATCH = "8<TCP:[127.0.0.1:1->127.0.0.1:6443]>"
CALLS = "14<TCP:[127.0.0.1:2->127.0.0.1:6443]>"
PROBE = "15<TCP:[127.0.0.1:8080->127.0.0.1:3]>"
DAEMONSET = f"/apis/apps/v1/namespaces/nvdra-faef7048/daemonsets/computedomain-daemon-{UID}"
LEASE = "PUT /apis/coordination.k8s.io/v1/namespaces/n/leases/l"

TRACE = rf"""
sendto({WATCH}, "GET /api/v1/nodes?watch=true HTTP/1.1\r\n\r\n", 9, 0, NULL, 0) = 9
sendto({CALLS}, "PATCH {DAEMONSET} HTTP/1.1\r\nHost: a\r\n\r\n{{\"a\":1}}", 9, 0, NULL, 0) = 9
write(2</lane/controller-1.log>, "I", 1) = 1
sendto({PROBE}, "HTTP/1.1 200 OK", 9, 0, NULL, 0) = 9
sendto({CALLS}, "{LEASE} HTTP/1.1\r\n", 9) = 9
sendto({CALLS}, "the rest of it", 9) = 9
sendto({CALLS}, "POST /api/v1/namespaces/team-a0a349a1/events HTTP/1.1\r\n", 9, 0, NULL, 0) = 9
sendto({CALLS}, "the rest of it", 9) = 9
"""

PATCH, POST = "PATCH nvdra/daemonsets/computedomain-daemon-<uid>", "POST team/events"


def test_every_write_but_the_leases_is_a_point() -> None:
    found, others = points.count_points(
        traced_requests.call_targets(strace.parse(TRACE, {7: MAIN}), NODE)
    )
    assert [(place.thread, place.index, point) for point, place in found] == [
        (MAIN, 2, KillPoint("sendto", PATCH, 1)),
        (MAIN, 6, KillPoint("sendto", POST, 1)),
        (MAIN, 7, KillPoint("sendto", f"rest of {POST}", 1)),
    ]
    assert dict(others) == {
        "reads and the lease": 2,
        "rest of PUT namespaces/n/leases/l": 1,
        "the log": 1,
        "answer to a probe": 1,
    }


def test_a_controller_that_gets_another_signal_has_made_the_call_before_it() -> None:
    for signal in ("SIGTERM", "SIGSTOP"):
        told = f"--- {signal} {{si_signo={signal}, si_code=SI_KERNEL}} ---"
        head, _, tail = TRACE.partition("write(")
        calls = strace.parse(f"{head}{told}\nwrite({tail}", {7: MAIN})
        assert points.point_of_death_in(
            traced_requests.call_targets(calls, NODE), "sendto"
        ) == KillPoint("sendto", PATCH, 1)


def test_a_signal_of_somebody_else_is_no_strike() -> None:
    theirs = "--- SIGSTOP {si_signo=SIGSTOP, si_code=SI_USER, si_pid=7, si_uid=0} ---"
    calls = strace.parse(theirs + TRACE, {7: MAIN})
    assert points.point_of_death_in(traced_requests.call_targets(calls, NODE), "sendto") is None


def test_two_that_act_by_turns_are_found_and_so_is_who_acts_after_its_lease() -> None:
    act = ("PATCH /apis/a/v1/namespaces/b/cs/d", "POST /apis/a/v1/namespaces/b/cs")
    event = "POST /api/v1/namespaces/b/events"

    def said(*writes: str, is_told: bool = True) -> str:
        """`1a`: the first one acts; `l` is the lease, `e` an Event."""
        texts = {"a": act[0], "l": LEASE, "e": event}
        made = [ApiWrite(each[0], TracedRequest.from_text(texts[each[1]])) for each in writes]
        return api_writes.find_overlap(made, is_told=is_told)

    assert not said("1a", "1l", "2l", "1e", "2a")
    assert not said("1a", "2l", "2a", is_told=False)
    assert not said("1l", "1a", "1a")
    assert said("1a", "1l", "2l", "2a", "1a", is_told=False) == "they took turns: ['1', '2', '1']"
    assert said("1l", "1a", "2l", "2a") == "1 ended with PATCH namespaces/b/cs/d"
    posts = [
        ApiWrite("1", TracedRequest.from_text(act[1])),
        ApiWrite("1", TracedRequest.from_text(event)),
    ]
    assert not api_writes.created_twice([*posts, ApiWrite("2", TracedRequest.from_text(event))])
    assert api_writes.created_twice([*posts, ApiWrite("2", TracedRequest.from_text(act[1]))]) == [
        "POST namespaces/b/cs"
    ]
