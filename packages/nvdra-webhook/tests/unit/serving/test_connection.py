# SPDX-License-Identifier: Apache-2.0
"""Whatever a client sends, what comes back is HTTP, and nothing is held for ever."""

import asyncio
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nvdra_api.gates import FeatureGates
from nvdra_runtime.http.connections import Connections
from nvdra_testing.admission import config_corpus, reviews
from nvdra_webhook.admission.cluster_names import ClusterNames
from nvdra_webhook.endpoints import VALIDATE_PATH, Endpoints
from nvdra_webhook.metrics import WebhookMetrics
from nvdra_webhook.serving.connection import MAX_HEADER_BYTES, Connection, Limits
from nvdra_webhook.serving.exchange import HttpRequest, HttpResponse, Respond

LIMITS = Limits(max_body_bytes=100_000)
MAX_BYTES = 150_000
API_SERVER_IDLE_S = 90
"""`IdleConnTimeout` of its clients, which is that of Go's default transport."""


def some_connections() -> Connections[Connection]:
    return Connections("https", 100, MAX_BYTES, lambda _server, _why: None)


class Wire(asyncio.Transport):
    """What the connection writes, and whether it has closed."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.is_closed = False
        self.reads = True

    def write(self, data: Any) -> None:
        assert not self.is_closed
        self.sent += bytes(data)

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def get_write_buffer_size(self) -> int:
        return 0


class Client:
    """One connection, its clock, and what came back."""

    def __init__(
        self,
        respond: Respond | None = None,
        connections: "Connections[Connection] | None" = None,
    ) -> None:
        self.now = 0.0
        self.failures = 0
        self.turns: list[Callable[[], None]] = []
        self.takes_turns = True
        self.wire = Wire()
        metrics = WebhookMetrics()
        endpoints = Endpoints(FeatureGates(), ClusterNames, {}, metrics, lambda: self.now)
        self.connection = Connection(
            respond or endpoints.respond,
            LIMITS,
            lambda: self.now,
            self._failed,
            some_connections() if connections is None else connections,
            lambda _address, job: self.turns.append(job),
        )
        self.connection.connection_made(self.wire)

    def _failed(self) -> None:
        self.failures += 1

    def send(self, data: bytes) -> list[tuple[int, bytes]]:
        """Send, and return the responses so far; all of them must be complete."""
        self.connection.data_received(data)
        while self.turns and self.takes_turns:
            self.turns.pop(0)()
        return responses(self.wire.sent)


class _Responses:
    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.bodies: list[bytes] = []
        self.complete = 0

    def on_message_begin(self) -> None:
        self.bodies.append(b"")

    def on_body(self, body: bytes) -> None:
        self.bodies[-1] += body

    def on_message_complete(self) -> None:
        self.statuses.append(self.parser.get_status_code())
        self.complete += 1

    parser: Any


def responses(sent: bytes) -> list[tuple[int, bytes]]:
    found = _Responses()
    found.parser = httptools.HttpResponseParser(found)
    found.parser.feed_data(sent)
    assert found.complete == len(found.bodies), sent
    return list(zip(found.statuses, found.bodies, strict=True))


def post(body: bytes, path: str = VALIDATE_PATH, *headers: str) -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *headers]
    return "\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body


GOOD = reviews.review(reviews.claim_text([reviews.entry(config_corpus.make(1)[0].parameters)]))


@given(st.binary(max_size=300))
@example(b"")
@example(b"null")
@example(b"[" * 200_00)
@example(b'{"request":' * 5_000)
@example(b"\xff\xfe")
@example(b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"object":[]}}')
def test_any_body_gets_one_complete_answer(body: bytes) -> None:
    client = Client()
    answers = client.send(post(body))
    assert [status for status, _ in answers] in ([200], [400])
    assert client.failures == 0
    assert client.send(post(GOOD))[1][0] == 200


@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=6))
@settings(max_examples=200)
def test_a_review_that_is_damaged_anywhere_gets_an_answer(place: int, damage: bytes) -> None:
    client = Client()
    ((status, body),) = client.send(post(GOOD[:place] + damage + GOOD[place + len(damage) :]))
    assert status in (200, 400)
    if status == 200:
        assert json.loads(body)["response"]["allowed"] in (True, False)
    assert client.failures == 0


@given(st.lists(st.binary(max_size=60), max_size=6))
@example([b"GET / HTTP/1.1\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"])
@example([b"CONNECT x HTTP/1.1\r\n\r\n", b"more"])
@example([b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"zz\r\n"])
@example([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
@example([b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"])
def test_any_bytes_on_the_connection_get_only_well_formed_answers(parts: list[bytes]) -> None:
    client = Client()
    for part in parts:
        for status, _ in client.send(part):
            assert 200 <= status < 500
    assert client.failures == 0


@given(st.lists(st.integers(1, 40), max_size=12))
def test_a_request_may_arrive_in_any_pieces(sizes: list[int]) -> None:
    client, rest = Client(), post(GOOD) * 2
    for size in sizes:
        piece, rest = rest[:size], rest[size:]
        client.send(piece)
    answers = client.send(rest)
    assert [status for status, _ in answers] == [200, 200]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (post(b"x" * 100_001), 413),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"FFFF\r\n"
            + b"x" * 0xFFFF
            + b"\r\nFFFF\r\n"
            + b"x" * 0xFFFF,
            413,
        ),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * (MAX_HEADER_BYTES + 1) + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * (MAX_HEADER_BYTES + 1) + b" HTTP/1.1\r\n\r\n", 431),
        (b"\x16\x03\x01 this is TLS\r\n\r\n", 400),
    ],
    ids=["long", "announced as long", "chunks", "header", "target", "no HTTP"],
)
def test_what_is_too_much_is_refused_and_the_connection_closed(
    request_: bytes, status: int
) -> None:
    client = Client()
    ((answer, _),) = client.send(request_)
    assert answer == status
    assert client.wire.is_closed


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", VALIDATE_PATH, 405),
        ("PUT", VALIDATE_PATH, 405),
        ("GET", "/readyz", 200),
        ("GET", "/readyz?verbose", 200),
        ("GET", "/livez", 200),
        ("GET", "/healthz", 200),
        ("GET", "/", 404),
        ("POST", f"{VALIDATE_PATH}/", 404),
    ],
)
def test_paths_and_methods(method: str, path: str, status: int) -> None:
    client = Client()
    ((answer, _),) = client.send(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert answer == status
    assert (b"Allow: POST" in client.wire.sent) == (status == 405)


def test_a_media_type_may_have_parameters() -> None:
    sent = post(GOOD).replace(b"application/json", b"Application/JSON; charset=utf-8")
    assert Client().send(sent)[0][0] == 200


def test_a_bug_is_answered_and_the_next_request_too() -> None:
    def respond(request: HttpRequest) -> HttpResponse:
        raise RuntimeError(request.path)

    client = Client(respond)
    assert [status for status, _ in client.send(post(b"a") + post(b"b"))] == [500, 500]
    assert client.failures == 2


def test_a_request_that_does_not_arrive_is_answered_after_its_time() -> None:
    client = Client()
    client.send(post(GOOD)[:-5])
    client.now = LIMITS.body_s - 1
    assert client.connection.deadline > client.now
    client.now = LIMITS.body_s + 1
    assert client.connection.deadline <= client.now
    client.connection.end_of_time()
    assert responses(client.wire.sent)[0][0] == 408
    assert client.wire.is_closed


@pytest.mark.parametrize("requests", [0, 1])
def test_an_api_server_is_the_first_to_close_an_idle_connection(requests: int) -> None:
    client = Client()
    client.send(post(GOOD) * requests)
    assert client.connection.deadline > API_SERVER_IDLE_S


def test_an_idle_connection_is_closed_silently() -> None:
    client = Client()
    client.send(post(GOOD))
    sent = client.wire.sent
    assert client.connection.deadline == pytest.approx(LIMITS.idle_s)
    client.connection.end_of_time()
    assert client.wire.is_closed
    assert client.wire.sent == sent


def test_a_client_that_does_not_read_is_not_read_from() -> None:
    client = Client()
    client.connection.pause_writing()
    assert not client.wire.reads
    assert client.connection.deadline == LIMITS.write_s
    client.connection.resume_writing()
    assert client.wire.reads
    assert client.connection.deadline == LIMITS.idle_s


def test_draining_waits_for_a_request_that_is_half_received() -> None:
    idle, busy = Client(), Client()
    busy.send(post(GOOD)[:-5])
    for each in (idle, busy):
        each.connection.drain()
    assert idle.wire.is_closed
    assert not busy.wire.is_closed
    ((status, _),) = busy.send(post(GOOD)[-5:])
    assert status == 200
    assert b"Connection: close" in busy.wire.sent
    assert busy.wire.is_closed


def test_a_client_that_asks_before_it_sends_is_told_to_go_on() -> None:
    client = Client()
    head, body = post(GOOD, VALIDATE_PATH, "Expect: 100-continue").split(b"\r\n\r\n", 1)
    client.connection.data_received(head + b"\r\n\r\n")
    assert client.wire.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.wire.sent = b""
    assert client.send(body)[0][0] == 200


def test_bodies_that_are_too_large_together_cost_the_one_that_has_waited_longest() -> None:
    connections = some_connections()
    first, second, third = (Client(connections=connections) for _ in range(3))
    for now, client in enumerate((first, second, third)):
        connections.add(client.connection)
        client.now = now
    half = post(b"x" * 99_000)[:60_000]
    second.send(half)
    third.send(half)
    ((status, _),) = first.send(half)
    assert status == 503
    assert first.wire.is_closed
    assert first.connection.held_bytes == 0
    assert not second.wire.sent
    assert not third.wire.sent


@pytest.mark.parametrize("size", [1, 2, 16])
def test_a_body_in_small_chunks_takes_no_more_memory_than_its_bytes(size: int) -> None:
    client = Client()
    chunk = b"%x\r\n%s\r\n" % (size, b" " * size)
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    tracemalloc.start()
    try:
        client.send(chunk * (LIMITS.max_body_bytes // size))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * LIMITS.max_body_bytes


@pytest.mark.parametrize("length", ["0" * 5000, "0" * 5000 + "2"])
def test_a_length_may_have_any_number_of_zeros(length: str) -> None:
    client = Client()
    ((status, _),) = client.send(
        f"GET / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n{{}}".encode()
    )[:1]
    assert (status, client.failures) == (404, 0)


def test_a_review_is_answered_however_much_waits() -> None:
    connections = some_connections()
    slow = [Client(connections=connections) for _ in range(20)]
    honest = Client(connections=connections)
    honest.now = 1.0
    for client in (*slow, honest):
        connections.add(client.connection)
    for client in slow:
        client.send(post(b"x" * 99_000)[:60_000])
    rest = post(GOOD)
    while rest:
        answers = honest.send(rest[:100])
        rest = rest[100:]
    assert [status for status, _ in answers] == [200]
    assert sum(client.connection.held_bytes for client in slow) <= MAX_BYTES
    assert honest.connection.held_bytes == 0


LARGE = post(b"x" * 20_000)


def test_a_large_request_waits_for_its_turn_and_those_behind_it_follow() -> None:
    client = Client()
    client.takes_turns = False
    assert client.send(LARGE + post(GOOD) + LARGE + post(b"{}")[:40]) == []
    assert not client.wire.reads
    assert client.connection.held_bytes >= 40_000 + len(GOOD)
    client.turns.pop(0)()
    assert [status for status, _ in responses(client.wire.sent)] == [400, 200]
    assert not client.wire.reads
    assert not client.connection.is_idle
    client.turns.pop(0)()
    assert [status for status, _ in responses(client.wire.sent)] == [400, 200, 400]
    assert client.wire.reads
    assert client.send(post(b"{}")[40:])[3][0] == 400
    assert (client.turns, client.connection.held_bytes) == ([], 0)


def test_a_large_request_whose_turn_does_not_come_in_time_is_told_so() -> None:
    client = Client()
    client.takes_turns = False
    client.send(LARGE)
    client.now = client.connection.deadline
    client.connection.end_of_time()
    ((status, text),) = responses(client.wire.sent)
    assert (status, text) == (503, b"too many large requests are before this one\n")
    client.turns.pop(0)()
    assert len(responses(client.wire.sent)) == 1


def test_large_requests_that_wait_are_counted_with_those_that_arrive() -> None:
    connections = some_connections()
    clients = [Client(connections=connections) for _ in range(9)]
    for now, client in enumerate(clients):
        client.now = now
        client.takes_turns = False
        connections.add(client.connection)
        client.send(LARGE)
    assert sum(client.connection.held_bytes for client in clients) <= MAX_BYTES
    assert responses(clients[0].wire.sent)[0][0] == 503
