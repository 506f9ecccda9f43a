# SPDX-License-Identifier: Apache-2.0
"""One connection: HTTP/1.1 as llhttp parses it, with bounds on what a client may send and when.

A response is computed while its request is received, without a task and a queue; that to a large
request when it is its turn. Every request that can be told from noise is answered, in the order in
which they came; after a request that cannot, the connection is closed.
Source: docs/reference/webhook.md, "Request handling".
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, cast

import httptools
from nvdra_runtime.http.connections import BoundedConnection, Connections
from nvdra_runtime.telemetry import logs

from nvdra_webhook.serving import turns
from nvdra_webhook.serving.exchange import HttpRequest, HttpResponse, Respond
from nvdra_webhook.serving.turns import TakeTurn

LOG: Final = logs.logger(__name__)

MAX_HEADER_BYTES: Final = 32 * 1024
"""Of the request line and all headers. The API server sends less than 1 KiB."""

_INTERNAL: Final = "internal error; the log of the webhook has its cause"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES: Final = {
    status: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus
}
_PART_BYTES: Final = 16 * 1024
"""Parts of a body are kept together up to this, without the room that a longer one would take."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may do.

    Attributes:
        max_body_bytes: Of one request.
        header_s: From the first byte of a request to the end of its headers.
        body_s: From there to the end of its body, and from there to the turn of a large one.
        write_s: How long a client may leave a response unread.
        idle_s: From the TLS handshake to the first request, and between two requests. An API server
            closes a connection that it has not used for 90 s. It must be the first to do so: it
            repeats no POST that meets the end of a connection, and the user's request fails.
    """

    max_body_bytes: int
    header_s: float = 5.0
    body_s: float = 10.0
    write_s: float = 10.0
    idle_s: float = 120.0


class Connection(BoundedConnection):
    """One client, for `Connections`."""

    def __init__(
        self,
        respond: Respond,
        limits: Limits,
        clock: Callable[[], float],
        on_failure: Callable[[], None],
        connections: "Connections[Connection]",
        take_turn: TakeTurn,
    ) -> None:
        """Wait for the connection.

        Args:
            respond: Answers requests.
            limits: What the client may do.
            clock: Monotonic seconds.
            on_failure: Called for each request that was answered with 500.
            connections: All connections of the server.
            take_turn: Has large requests answered.
        """
        now = clock()
        super().__init__(now, now + limits.header_s)
        self._respond = respond
        self._limits = limits
        self._clock = clock
        self._on_failure = on_failure
        self._connections = connections
        self._take_turn = take_turn
        self._waiting: deque[tuple[HttpRequest, bool]] = deque()
        """Requests that wait for a turn, and those behind them; with whether to keep alive."""
        self._parser = httptools.HttpRequestParser(self)
        self._is_closing = False
        self._is_draining = False
        self._is_paused = False
        self._reset()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The TLS handshake is done. Go's client keeps a connection that it does not need yet."""
        self.transport = cast("asyncio.Transport", transport)
        self.deadline = self._clock() + self._limits.idle_s

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        del exc
        self.transport = None
        self._waiting.clear()
        self._connections.discard(self)

    def data_received(self, data: bytes) -> None:
        """Parse what came in. The parser calls the methods `on_…` below."""
        if self._is_closing:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(HTTPStatus.BAD_REQUEST, "upgrades are not supported")
        except httptools.HttpParserCallbackError as error:
            self._fail(error)
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, _INTERNAL)
        except httptools.HttpParserError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, f"the request is not HTTP/1.1: {error}")
        self._hold()

    def _hold(self) -> None:
        """Count the bytes of the requests that are not answered."""
        held = self._received
        if self._waiting:
            held += sum(len(request.body) for request, _ in self._waiting)
        if held != self.held_bytes:
            self._connections.hold(self, held)

    def eof_received(self) -> None:
        """The client sends no more; what it has sent completely is answered already."""

    def pause_writing(self) -> None:
        """The client does not read: accept no more requests from it until it does."""
        if self.transport is not None:
            self.transport.pause_reading()
            self._is_paused = True
            self.is_idle = False
            if not self._waiting:
                self.deadline = self._clock() + self._limits.write_s

    def resume_writing(self) -> None:
        """The client has read."""
        self._is_paused = False
        if self.transport is not None and not self._is_closing and not self._waiting:
            self.transport.resume_reading()
            self._wait_for_request()

    def end_of_time(self) -> None:
        """The deadline has passed: say so if a request is half received, and close."""
        if self.transport is None:
            return
        if self.is_idle or self._is_closing or self.transport.get_write_buffer_size():
            self.transport.abort()
        elif self._waiting:
            text = "too many large requests are before this one"
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, text)
        else:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "the request did not arrive in time")

    def refuse_bytes(self) -> None:
        """Too many bytes of requests wait, of which these have waited longest."""
        self._refuse(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "the requests that have not arrived completely are too large together",
        )

    def drain(self) -> None:
        """Close as soon as no request is half received."""
        self._is_draining = True
        if self.is_idle:
            self._close()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        if self._waiting:
            return  # its time begins when it can be read on
        self.is_idle = False
        self.since = self._clock()
        self.deadline = self.since + self._limits.header_s

    def on_url(self, url: bytes) -> None:
        """A part of the target of a request."""
        self._target += url
        self._header_bytes += len(url)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse_headers()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of a request, or of the end of a chunked body."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse_headers()
        lower = name.lower()
        if lower == b"content-type":
            self._content_type = value
        elif lower == b"expect":
            self._expects_continue = value.lower() == b"100-continue"
        elif lower == b"content-length":
            # The parser refuses what exceeds 64 bits, and lets any number of zeros through.
            digits = value if value[:1] != b"0" else value.lstrip(b"0")
            self._announced = int(digits) if digits.isdigit() else 0

    def on_headers_complete(self) -> None:
        """The body begins."""
        if not self._waiting:
            self.deadline = self._clock() + self._limits.body_s
        if self._announced > self._limits.max_body_bytes:
            self._refuse_body()
        elif self._expects_continue and not self._is_closing:
            self._write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._received += len(body)
        if self._received > self._limits.max_body_bytes:
            self._refuse_body()
        elif not self._is_closing and self._body:
            self._add(body)
        elif not self._is_closing:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """The request is complete: answer it, or have it wait for its turn."""
        if self._is_closing:
            return
        method = self._parser.get_method().decode("latin-1")
        keep = self._parser.should_keep_alive()
        path, _, query = self._target.decode("latin-1").partition("?")
        body = bytes(self._body[0]) if len(self._body) == 1 else b"".join(self._body)
        content_type = self._content_type.decode("latin-1")
        self._reset()
        request = HttpRequest(method, path, query, content_type, body)
        if self._waiting:
            self._waiting.append((request, keep))
        elif len(body) > turns.SMALL_BYTES:
            self._wait_for_turn(request, keep=keep)
        else:
            self._answer(request, keep=keep)

    def _wait_for_turn(self, request: HttpRequest, *, keep: bool) -> None:
        """Read nothing more until a large request is answered."""
        self._waiting.appendleft((request, keep))
        self.is_idle = False  # also behind a request that was answered just now
        self.deadline = self._clock() + self._limits.body_s
        if self.transport is not None:
            self.transport.pause_reading()
            peer = self.transport.get_extra_info("peername")
            self._take_turn(str(peer[0]) if peer else "", self._answer_waiting)

    def _answer_waiting(self) -> None:
        """It is the turn of the large request; those behind it follow until the next large one."""
        is_turn = True
        while self._waiting and not self._is_closing:
            request, keep = self._waiting.popleft()
            if not is_turn and len(request.body) > turns.SMALL_BYTES:
                self._wait_for_turn(request, keep=keep)
                break
            self._answer(request, keep=keep)
            is_turn = False
        self._hold()
        if self.transport is None or self._is_closing or self._waiting or self._is_paused:
            return
        if self._received or self._target:  # of the next request a part has come
            self.is_idle = False
            self.since = self._clock()
            self.deadline = self.since + self._limits.body_s
        self.transport.resume_reading()

    def _answer(self, request: HttpRequest, *, keep: bool) -> None:
        keep = keep and not self._is_draining
        try:
            response = self._respond(request)
        except Exception as error:  # noqa: BLE001 - a bug is answered, and costs no other request one
            self._fail(error)
            response = HttpResponse.of_text(HTTPStatus.INTERNAL_SERVER_ERROR, _INTERNAL)
        self._send(response, keep=keep, with_body=request.method != "HEAD")
        if keep and not self._is_paused:
            self._wait_for_request()

    def _add(self, body: bytes) -> None:
        """Keep a later part of the body: a small one with the last, as an object takes 50 bytes."""
        last = self._body[-1]
        if len(last) + len(body) > _PART_BYTES:
            self._body.append(body)
        elif isinstance(last, bytearray):
            last += body
        else:
            self._body[-1] = bytearray(last + body)

    def _fail(self, error: Exception) -> None:
        LOG.failure("Could not answer a request", error)
        self._on_failure()

    def _reset(self) -> None:
        self._target = b""
        self._content_type = b""
        self._expects_continue = False
        self._announced = 0
        self._received = 0
        self._header_bytes: int = 0
        self._body: list[bytes | bytearray] = []

    def _wait_for_request(self) -> None:
        self.is_idle = True
        self.since = self._clock()
        self.deadline = self.since + self._limits.idle_s
        if self._is_draining:
            self._close()

    def _refuse_headers(self) -> None:
        self._refuse(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"the headers are longer than {MAX_HEADER_BYTES} bytes",
        )

    def _refuse_body(self) -> None:
        self._refuse(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the body is longer than {self._limits.max_body_bytes} bytes",
        )

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        """Answer what cannot be read on, and close."""
        if not self._is_closing:
            self._reset()
            self._waiting.clear()
            self._send(HttpResponse.of_text(status, text), keep=False, with_body=True)

    def _send(self, response: HttpResponse, *, keep: bool, with_body: bool) -> None:
        head = (
            f"{_STATUS_LINES[response.status]}"
            f"Content-Type: {response.content_type}\r\n"
            f"Content-Length: {len(response.body)}\r\n"
        )
        for name, value in response.headers:
            head += f"{name}: {value}\r\n"
        head += "\r\n" if keep else "Connection: close\r\n\r\n"
        self.is_known = True
        self._write(head.encode("latin-1") + response.body if with_body else head.encode())
        if not keep:
            self._close()

    def _write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def _close(self) -> None:
        self._is_closing = True
        self.deadline = self._clock() + self._limits.write_s
        if self.transport is not None:
            self.transport.close()
