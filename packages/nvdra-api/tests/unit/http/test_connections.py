# SPDX-License-Identifier: Apache-2.0
"""Too many connections, or too many bytes, cost the client that has waited longest."""

from collections import Counter

import pytest
from nvdra_runtime.http import connections
from nvdra_runtime.http.connections import BoundedConnection, Connections
from nvdra_runtime.process.log_records import FIELDS_ATTRIBUTE


class Waiting(BoundedConnection):
    """A client that sends nothing, and notes what happens to it."""

    def __init__(self, since: float, deadline: float = 1e9) -> None:
        super().__init__(since, deadline)
        self.end = ""

    def abort(self) -> None:
        self.end = "aborted"

    def refuse_bytes(self) -> None:
        self.end = "refused"

    def end_of_time(self) -> None:
        self.end = "late"


class Counted:
    """A server with room for few, and what it counted."""

    def __init__(self, max_connections: int = 3, max_bytes: int = 100) -> None:
        self.dropped: Counter[tuple[str, str]] = Counter()
        self.connections: Connections[Waiting] = Connections(
            "http", max_connections, max_bytes, self._count
        )

    def _count(self, server: str, reason: str) -> None:
        self.dropped[server, reason] += 1

    def open(self, *since: float) -> list[Waiting]:
        clients = [Waiting(each) for each in since]
        for client in clients:
            self.connections.add(client)
        return clients


def test_the_longest_waiting_makes_room_and_not_the_newcomer() -> None:
    server = Counted()
    clients = server.open(2.0, 1.0, 3.0, 4.0, 5.0)
    assert [client.end for client in clients] == ["aborted", "aborted", "", "", ""]
    assert server.dropped == {("http", "connections"): 2}


def test_newcomers_that_send_nothing_do_not_push_out_a_client_that_was_answered() -> None:
    server = Counted(max_connections=4)
    (answered,) = server.open(1.0)
    answered.is_known = True
    flood = server.open(*(float(at) for at in range(2, 100)))
    assert answered.end == ""
    assert [client.end for client in flood[-3:]] == ["", "", ""]


def test_clients_that_were_answered_and_send_nothing_more_make_room_for_newcomers() -> None:
    server = Counted(max_connections=4)
    kept = server.open(1.0, 2.0, 3.0, 4.0)
    for client in kept:
        client.is_known = True
    newcomers = server.open(5.0, 6.0)
    assert [client.end for client in kept] == ["aborted", "aborted", "", ""]
    assert [client.end for client in newcomers] == ["", ""]


def test_a_client_that_begins_a_request_waits_from_then_on() -> None:
    server = Counted()
    first, second, _ = server.open(1.0, 2.0, 3.0)
    first.since = 3.5
    server.open(4.0)
    assert (first.end, second.end) == ("", "aborted")


def test_bytes_beyond_the_bound_cost_the_request_that_has_waited_longest() -> None:
    server = Counted()
    idle, slow, newer = server.open(0.0, 1.0, 2.0)
    server.connections.hold(slow, 60)
    server.connections.hold(newer, 40)
    assert slow.end == ""
    server.connections.hold(newer, 41)
    assert (idle.end, slow.end, newer.end) == ("", "refused", "")
    assert server.dropped == {("http", "bytes"): 1}
    server.connections.discard(newer)
    server.connections.hold(slow, 100)
    assert server.dropped == {("http", "bytes"): 1}


def test_a_process_without_connections_has_none_to_give_up() -> None:
    assert not Counted().connections.drop_one(connections.Dropped.OPEN_FILES)


def test_the_bound_is_below_the_limit_of_open_files() -> None:
    assert connections.bound(512, 1024) == 512
    assert connections.bound(512, 256) == 128


def test_late_connections_end() -> None:
    server = Counted()
    idle, slow, other = Waiting(0.0, 5.0), Waiting(0.0, 5.0), Waiting(0.0, 6.0)
    slow.is_idle = False
    for client in (idle, slow, other):
        server.connections.add(client)
    server.connections.sweep(4.9)
    assert (idle.end, slow.end, other.end) == ("", "", "")
    server.connections.sweep(5.0)
    assert (idle.end, slow.end, other.end) == ("late", "late", "")
    assert server.dropped == {("http", "time"): 1}


def test_the_log_gets_one_line_a_minute_with_the_numbers(caplog: pytest.LogCaptureFixture) -> None:
    server = Counted()
    for second in range(121):
        server.open(*[float(second)] * 10)
        server.connections.sweep(1000.0 + second)
    lines = [vars(record)[FIELDS_ATTRIBUTE] for record in caplog.records]
    assert [line["closed_for_connections"] for line in lines] == [7, 600, 600]
    assert lines[-1].items() >= {"server": "http", "open": 3, "max": 3}.items()
