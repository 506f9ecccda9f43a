# SPDX-License-Identifier: Apache-2.0
"""Loopback ports for programs that tests start; no two pytest workers get the same port.

A port that the kernel has assigned and got back can be assigned again before the program binds it.
The ports here are below the kernel's range. Each worker has a range of its own and reuses it.
"""

import itertools
import os
import random
import socket
import threading
from collections.abc import Iterator

FIRST_PORT, PORTS_PER_WORKER, WORKERS = 10_000, 2_000, 10
"""The last port is 29999; the kernel assigns ports from 32768 on."""


def xdist_worker() -> int:
    """The number of this pytest-xdist worker, from 0.

    A process that is no worker has the last number.
    """
    name = os.environ.get("PYTEST_XDIST_WORKER", "")
    return int(name.removeprefix("gw")) % (WORKERS - 1) if name else WORKERS - 1


def free_ports(count: int) -> list[int]:
    """Return this many different ports on which nobody listens."""
    with _lock:
        return list(itertools.islice(_ports, count))


def _free_ports() -> Iterator[int]:
    first = FIRST_PORT + xdist_worker() * PORTS_PER_WORKER
    begin = random.randrange(PORTS_PER_WORKER)  # another run of the tests may be in progress
    for place in itertools.count(begin):
        port = first + place % PORTS_PER_WORKER
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port


_ports = _free_ports()
_lock = threading.Lock()
"""Several API servers are started at once, each on a thread, but an iterator serves one thread."""
