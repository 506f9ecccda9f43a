# SPDX-License-Identifier: Apache-2.0
"""Loopback ports and addresses for programs that tests start; no two pytest workers get the same.

A port that the kernel has assigned and got back can be assigned again before the program binds it.
The ports here are below the kernel's range. Each worker has a range of its own and reuses it.
"""

import fcntl
import functools
import itertools
import os
import random
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

FIRST_PORT, PORTS_PER_WORKER, WORKERS = 10_000, 2_000, 10
"""The last port is 29999; the kernel assigns ports from 32768 on."""


def xdist_worker() -> int:
    """The number of this pytest-xdist worker, from 0.

    A process that is no worker has the last number.
    """
    name = os.environ.get("PYTEST_XDIST_WORKER", "")
    return int(name.removeprefix("gw")) % (WORKERS - 1) if name else WORKERS - 1


@functools.cache
def network_number() -> int:
    """A number that no other process on this machine gets while this one runs, from 100 to 254.

    The networks 127.<number>.0.0/16 are for addresses that several programs share, such as port
    50000 of IMEX daemons: other runs of the tests may be in progress.

    Raises:
        RuntimeError: All are taken.
    """
    for number in range(100, 255):
        path = Path(tempfile.gettempdir()) / f"nvdra-test-network-{number}"
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
        else:
            return number  # the lock lasts as long as the descriptor, which stays open
    raise RuntimeError("155 other processes of tests run on this machine")


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
