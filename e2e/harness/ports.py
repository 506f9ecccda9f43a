"""Ports of the loopback for programs that tests start; two workers of pytest never get the same.

A port that the kernel gave and got back is anybody's again until the program has bound it. These
lie below those that it gives, a range for each worker, and come round when all have been used.
"""

import itertools
import os
import random
import socket
import threading
from collections.abc import Iterator

FIRST, EACH, WORKERS = 10_000, 2_000, 10
"""Up to 29999; the kernel gives from 32768 on."""


def worker() -> int:
    """Which worker of pytest-xdist this is, from nought; the last number is for whoever is none."""
    name = os.environ.get("PYTEST_XDIST_WORKER", "")
    return int(name.removeprefix("gw")) % (WORKERS - 1) if name else WORKERS - 1


def free(count: int) -> list[int]:
    """So many ports that nobody listens on, all different."""
    with _one_at_a_time:
        return list(itertools.islice(_free, count))


def _found() -> Iterator[int]:
    first = FIRST + worker() * EACH
    begin = random.randrange(EACH)  # another run may be under way beside this one
    for place in itertools.count(begin):
        port = first + place % EACH
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port


_free = _found()
_one_at_a_time = threading.Lock()
"""Several API servers are started at once, each on a thread; an iterator is for one."""
