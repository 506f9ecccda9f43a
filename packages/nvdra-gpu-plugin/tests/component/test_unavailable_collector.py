# SPDX-License-Identifier: Apache-2.0
"""A trace collector that is down, hangs or is overloaded: spans are dropped and counted."""

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from nvdra_testing.node.rig import Rig

ENVIRON = {
    "OTEL_BSP_MAX_QUEUE_SIZE": "32",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "8",
    "OTEL_BSP_SCHEDULE_DELAY": "20",
}
LONGEST_S = 6.0
"""A prepare that waited for the exporter would take its 10 s; a busy machine is slow as well."""


@contextmanager
def refusing() -> Iterator[str]:
    """A port on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def silent() -> Iterator[str]:
    """A port that accepts and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


class _Overloaded(BaseHTTPRequestHandler):
    over = threading.Event()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.over.wait(1.0)
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing: the test speaks."""


@contextmanager
def overloaded() -> Iterator[str]:
    """A collector that answers 503, and takes a second for it."""
    _Overloaded.over.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Overloaded) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        _Overloaded.over.set()
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("collector", [refusing, silent, overloaded])
async def test_prepares_are_answered_as_ever_and_lost_spans_are_counted(
    rig: Rig, collector: Callable[[], AbstractContextManager[str]]
) -> None:
    with collector() as endpoint:
        await rig.start(environ={"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, **ENVIRON})
        longest = 0.0
        for _ in range(5):
            claims = [rig.create_claim(f"gpu-{minor}") for minor in range(8)]
            for claim in claims:
                began = time.monotonic()
                assert not (await rig.dra.prepare([claim]))[claim.uid].error
                longest = max(longest, time.monotonic() - began)
            await rig.dra.unprepare(claims)
        assert longest < LONGEST_S
        await rig.wait_until(lambda: dropped(rig) > 0, "what is lost to be counted")
        # What nobody could receive can still be read here.
        assert rig.process.trace(claims[0].uid)["outcome"] == "success"
        began = time.monotonic()
        assert rig.process.stop() == 0
        assert time.monotonic() - began < 10


def dropped(rig: Rig) -> float:
    """Spans that the plugin says it has lost."""
    _, text = rig.process.get("/metrics")
    return sum(
        float(count) for count in re.findall(r"^nvdra_spans_dropped_total\S+ (\S+)", text, re.M)
    )
