"""The crash campaign's reading of a controller's calls, on which its completeness rests."""

import strace
from campaign import points, requests
from campaign.points import Point
from strace import MAIN

NODE = points.Node("/lane", 6443)
UID = "f639ec32-f447-49fd-94aa-4df9528c4f33"
WATCH = "8<TCP:[127.0.0.1:1->127.0.0.1:6443]>"
CALLS = "14<TCP:[127.0.0.1:2->127.0.0.1:6443]>"
PROBE = "15<TCP:[127.0.0.1:8080->127.0.0.1:3]>"
DAEMONSET = f"/apis/apps/v1/namespaces/nvdra-faef7048/daemonsets/computedomain-daemon-{UID}"

TRACE = rf"""
sendto({WATCH}, "GET /api/v1/nodes?watch=true HTTP/1.1\r\n\r\n", 9, 0, NULL, 0) = 9
sendto({CALLS}, "PATCH {DAEMONSET} HTTP/1.1\r\nHost: a\r\n\r\n{{\"a\":1}}", 9, 0, NULL, 0) = 9
recvfrom({WATCH}, "3dc\r\n{{\"type\":\"MODIFIED\"}}", 262144, 0, NULL, NULL) = 9
recvfrom({CALLS}, "HTTP/1.1 200 OK\r\n", 262144, 0, NULL, NULL) = 9
recvfrom({CALLS}, "{{}}", 262144, 0, NULL, NULL) = 2
write(2</lane/controller-1.log>, "I", 1) = 1
sendto({PROBE}, "HTTP/1.1 200 OK", 9, 0, NULL, 0) = 9
sendto({CALLS}, "PUT /apis/coordination.k8s.io/v1/namespaces/n/leases/l HTTP/1.1\r\n", 9) = 9
recvfrom({CALLS}, "HTTP/1.1 200 OK\r\n", 262144, 0, NULL, NULL) = 9
sendto({CALLS}, "POST /api/v1/namespaces/team-a0a349a1/events HTTP/1.1\r\n", 9, 0, NULL, 0) = 9
"""

PATCH, POST = "PATCH nvdra/daemonsets/computedomain-daemon-<uid>", "POST team/events"


def test_a_write_is_two_points_where_it_is_sent_and_where_its_answer_is_read() -> None:
    found, others = points.counted(requests.aims(strace.parse(TRACE, {7: MAIN}), NODE))
    assert [(place.thread, place.index, point) for point, place in found] == [
        (MAIN, 2, Point("sendto", PATCH, 1)),
        (MAIN, 2, Point("recvfrom", f"answer to {PATCH}", 1)),
        (MAIN, 5, Point("sendto", POST, 1)),
    ]
    assert dict(others) == {
        "reads and the lease": 2,
        "news, and answers to reads": 3,
        "the log": 1,
        "answer to a probe": 1,
    }


def test_a_controller_that_was_killed_at_an_answer_had_made_the_write() -> None:
    killed = TRACE.partition(" = 9\nrecvfrom")[0] + " = 9\n"
    killed += f"recvfrom({CALLS}, <unfinished ...>) = ?\n+++ killed by SIGKILL +++\n"
    aims = requests.aims(strace.parse(killed, {7: MAIN}), NODE)
    assert points.struck(aims, "recvfrom") == Point("recvfrom", f"answer to {PATCH}", 1)
    assert points.struck(aims, "sendto") is None


def test_a_controller_that_was_told_to_end_goes_on_and_the_call_is_the_one_before_the_signal() -> (
    None
):
    told = "--- SIGTERM {si_signo=SIGTERM, si_code=SI_KERNEL} ---"
    head, _, tail = TRACE.partition("recvfrom")
    calls = strace.parse(f"{head}{told}\nrecvfrom{tail}", {7: MAIN})
    assert points.struck(requests.aims(calls, NODE), "sendto") == Point("sendto", PATCH, 1)
