# SPDX-License-Identifier: Apache-2.0
"""The webhook, as a process, over TLS: reviews, and whole requests of HTTP."""

import http.client
import json
import socket
import ssl
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from nvdra_api.names import COMPUTE_DOMAIN_DRIVER as CD_DRIVER
from nvdra_api.names import GPU_DRIVER
from nvdra_webhook.certificates import authority
from nvdra_webhook.endpoints import VALIDATE_PATH, WARN_PATH

from nvdra_testing.admission import reviews, webhook_process
from nvdra_testing.admission.webhook_process import WebhookProcess
from nvdra_testing.fuzzing import configs, documents, go_json
from nvdra_testing.fuzzing.target import Program, Target
from nvdra_testing.fuzzing.verdict import HARD_STOP_S
from nvdra_testing.polling import WAIT_S

_REFUSALS: Final = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
)
_GATES: Final = "--feature-gates=TimeSlicingSettings=true,MPSSupport=true,PassthroughSupport=true"
_PAUSE_S: Final = 0.05
"""How long a client waits for the answer to what may be no whole request."""


def _reviews() -> list[dict[str, Any]]:
    """A claim and a template, each with every config, in every version of the API."""
    found = []
    for resource in reviews.KINDS:
        for version in ("v1", "v1beta2", "v1beta1"):
            entries = [
                reviews.entry(json.dumps(config), driver, ["gpu"])
                for driver, config in configs.VALID
            ]
            text = reviews.claim_text(entries, resource=resource, version=version)
            for operation, old in (("CREATE", None), ("UPDATE", text)):
                body = reviews.review(
                    text, resource=resource, version=version, operation=operation, old_text=old
                )
                found.append(json.loads(body))
    return found


_REVIEWS: Final = _reviews()
_HONEST: Final = reviews.review(reviews.claim_text([]))


@dataclass
class _Webhook:
    running: WebhookProcess
    trusted: ssl.SSLContext
    send: "Callable[[_Webhook, bytes], str]"
    _connections: dict[str, http.client.HTTPSConnection] = field(default_factory=dict)

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        return self.running.process

    @property
    def log(self) -> Path:
        return self.running.log

    def exchange(self, case: bytes) -> str:
        return self.send(self, case)

    def ask_as_another(self) -> str:
        """A review of an ordinary claim."""
        return self.review("another", VALIDATE_PATH, _HONEST) or self.review(
            "another", WARN_PATH, _HONEST
        )

    def review(
        self,
        client: str,
        path: str,
        body: bytes,
        refusals: Collection[HTTPStatus] = _REFUSALS,
    ) -> str:
        """Send a review over the connection of a client. Returns what is wrong."""
        for is_again in (False, True):
            connection = self._connections.get(client) or http.client.HTTPSConnection(
                "localhost", self.running.port, timeout=HARD_STOP_S, context=self.trusted
            )
            self._connections[client] = connection
            try:
                connection.request("POST", path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                return _wrong(answer.status, answer.read(), refusals)
            except (OSError, http.client.HTTPException):
                connection.close()
                del self._connections[client]
                if is_again:
                    raise
        return ""


def _wrong(status: int, body: bytes, refusals: Collection[HTTPStatus]) -> str:
    """Why an answer is none of an admission webhook; empty if it is one."""
    if status in refusals:
        body.decode()
        return ""
    if status != HTTPStatus.OK:
        return f"status {status}: {body[:300]!r}"
    response = json.loads(body)["response"]
    if not response["allowed"] and not response["status"]["message"]:
        return f"a refusal without a message: {body[:300]!r}"
    return ""


def _send_review(webhook: _Webhook, case: bytes) -> str:
    return webhook.review("tenant", VALIDATE_PATH, case) or webhook.review(
        "tenant", WARN_PATH, case
    )


def _send_parameters(webhook: _Webhook, case: bytes) -> str:
    """A claim with these parameters for each driver, as an API server sends it.

    What it stores it also sends, so each of them is answered with a verdict.
    """
    entries = [reviews.entry(case.decode(), driver) for driver in (GPU_DRIVER, CD_DRIVER)]
    return webhook.review(
        "tenant", VALIDATE_PATH, reviews.review(reviews.claim_text(entries)), refusals=()
    )


def _send_request(webhook: _Webhook, case: bytes) -> str:
    """Write bytes to a new connection, and read what comes until it is closed or silent."""
    with (
        socket.create_connection(("127.0.0.1", webhook.running.port), HARD_STOP_S) as plain,
        webhook.trusted.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        received = b""
        try:
            connection.sendall(case)
            connection.settimeout(_PAUSE_S)
            while chunk := connection.recv(65536):
                received += chunk
        except (TimeoutError, ConnectionError, ssl.SSLError):
            pass
    return f"{received[:300]!r}" if received.startswith(b"HTTP/1.1 500") else ""


@contextmanager
def _webhook(send: Callable[[_Webhook, bytes], str]) -> Iterator[Program]:
    with TemporaryDirectory(prefix="fuzz-", dir="/dev/shm") as name:
        directory, now = Path(name), datetime.now(UTC)
        signer = authority.create(now)
        pair = authority.issue(signer, ["localhost"], now)
        (directory / "tls.crt").write_bytes(pair.certificate_pem)
        (directory / "tls.key").write_bytes(pair.key_pem)
        flags = (
            f"--tls-cert-file={directory}/tls.crt",
            f"--tls-private-key-file={directory}/tls.key",
            "--cluster-lookup-interval=0s",
            _GATES,
        )
        with webhook_process.run_webhook(directory, *flags) as running:
            polling_wait(running.is_ready)
            trusted = ssl.create_default_context(cadata=signer.certificate_pem.decode())
            yield _Webhook(running, trusted, send)


def polling_wait(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    import time

    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, "the program does not become ready"
        time.sleep(0.05)


def _request(body: bytes, *headers: bytes) -> bytes:
    head = (
        f"POST {VALIDATE_PATH}?timeout=10s HTTP/1.1".encode(),
        b"Host: localhost",
        b"Content-Type: application/json",
        *headers,
        b"",
        b"",
    )
    return b"\r\n".join(head) + body


_REQUESTS: Final[Sequence[bytes]] = (
    _request(_HONEST, b"Content-Length: %d" % len(_HONEST)),
    _request(b"%x\r\n%s\r\n0\r\n\r\n" % (len(_HONEST), _HONEST), b"Transfer-Encoding: chunked"),
    _request(_HONEST, b"Content-Length: %d" % len(_HONEST), b"Expect: 100-continue"),
    b"GET /readyz?verbose HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain\r\n\r\n",
)


@st.composite
def _requests(draw: DrawFn) -> bytes:
    """A damaged request, with a header that may be long or many."""
    data = draw(documents.damaged(draw(st.sampled_from(_REQUESTS))))
    if draw(st.booleans()):
        line, _, rest = data.partition(b"\r\n")
        header = draw(documents.names()) + b": " + draw(documents.names())
        more = b"\r\n".join([header] * draw(documents.sizes(2000)))
        data = line + b"\r\n" + more[: 1 << 20] + b"\r\n" + rest
    return data


TARGETS: Final = (
    Target(
        "admission-review",
        documents.mutations(_REVIEWS),
        [json.dumps(each).encode() for each in _REVIEWS],
        lambda: _webhook(_send_review),
        2.0,
    ),
    Target(
        "admission-parameters",
        documents.mutations([config for _, config in configs.VALID]).filter(go_json.is_storable),
        [json.dumps(config).encode() for _, config in configs.VALID],
        lambda: _webhook(_send_parameters),
        4.0,
    ),
    Target("webhook-request", _requests(), _REQUESTS, lambda: _webhook(_send_request)),
)
