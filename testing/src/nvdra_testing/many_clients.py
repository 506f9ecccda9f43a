# SPDX-License-Identifier: Apache-2.0
"""Clients that hold a server's connections and do not say what they want, as a hostile pod would.

`run` starts them as a process of their own, which is nice to the server: on a cluster they are
other machines' load. A client whose connection is closed comes again after a pause.
"""

import asyncio
import json
import os
import resource
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

SILENT: Final = "silent"
"""Connects, and sends nothing."""
IDLE: Final = "idle"
"""Does the TLS handshake, and sends nothing more."""
HALF: Final = "half"
"""Announces a body of 8 MB and sends a part of it."""
BEGUN: Final = "begun"
"""Sends the first byte of a request without TLS."""

_HALF_BYTES: Final = 1_500_000
_HEAD: Final = (
    b"POST /validate-resource-claim-parameters HTTP/1.1\r\nHost: x\r\n"
    b"Content-Type: application/json\r\nContent-Length: 8388000\r\n\r\n"
)
_SENT: Final = {SILENT: b"", IDLE: b"", HALF: _HEAD + b"a" * _HALF_BYTES, BEGUN: b"G"}
_NICENESS: Final = 5
_AT_ONCE: Final = 100
_BETWEEN_S: Final = 0.1
"""Together at most 1,000 connections a second, so that no client goes within milliseconds."""


class Crowd(NamedTuple):
    """Clients of one kind.

    Attributes:
        kind: What they do.
        size: How many.
        port: The server's, on 127.0.0.1.
    """

    kind: str
    size: int
    port: int


@contextmanager
def run(crowds: Sequence[Crowd], pause_s: float = 5.0) -> Iterator["subprocess.Popen[str]"]:
    """Have these clients while the block runs. It begins when each has tried to connect."""
    argv = [sys.executable, "-m", __name__, json.dumps([pause_s, *map(list, crowds)])]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process
        finally:
            process.kill()


def has_come(process: "subprocess.Popen[str]") -> None:
    """Wait until each client has tried to connect. Blocks."""
    assert process.stdout is not None
    if not process.stdout.readline():
        raise RuntimeError("the clients have ended")


class _Clients:
    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._context = ssl.create_default_context()
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    async def come(self, crowd: Crowd, arrived: asyncio.Event) -> None:
        """One client of a crowd, again and again."""
        context = self._context if crowd.kind in (IDLE, HALF) else None
        while True:
            try:
                async with self._at_once:
                    connect = asyncio.open_connection("127.0.0.1", crowd.port, ssl=context)
                    reader, writer = await asyncio.wait_for(connect, 30)
                    await asyncio.sleep(_BETWEEN_S)
                arrived.set()
                writer.write(_SENT[crowd.kind])
                while await reader.read(4096):
                    pass
                writer.close()
            except (OSError, TimeoutError):
                arrived.set()
            await asyncio.sleep(self._pause_s)


async def _main(pause_s: float, crowds: Sequence[Crowd]) -> None:
    clients = _Clients(pause_s)
    arrivals: list[asyncio.Event] = []
    async with asyncio.TaskGroup() as group:
        for crowd in crowds:
            for _ in range(crowd.size):
                arrivals.append(asyncio.Event())
                group.create_task(clients.come(crowd, arrivals[-1]))
        for arrived in arrivals:
            await arrived.wait()
        sys.stdout.write("all have come\n")
        sys.stdout.flush()


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.nice(_NICENESS)
    pause, *said = json.loads(sys.argv[1])
    asyncio.run(_main(pause, [Crowd(*each) for each in said]))
