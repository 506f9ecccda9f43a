# SPDX-License-Identifier: Apache-2.0
"""Answers large requests one after the other, by turns of the clients' addresses.

To read a large body takes long enough that a hundred of them at once would keep an API server from
its answer, which is to a body of some KB. So small requests go first: after a large one, as much
time is left to others as it took. Among large ones, an address that sends many waits for itself.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

SMALL_BYTES: Final = 16 * 1024
"""The longest body that is answered at once. Of an API server's, few are longer than 8 KB."""

Job = Callable[[], None]


class TakeTurn(Protocol):
    """Runs a job of an address when it is its turn; not before this call returns."""

    def __call__(self, address: str, job: Job) -> None:
        """Add a job."""


class Turns:
    """The jobs that wait, by address."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have no job yet.

        Args:
            loop: Runs the jobs. They must not block.
        """
        self._loop = loop
        self._waiting: dict[str, deque[Job]] = {}
        self._is_scheduled = False

    def take(self, address: str, job: Job) -> None:
        """Run a job of an address when it is its turn."""
        self._waiting.setdefault(address, deque()).append(job)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run_next)

    def _run_next(self) -> None:
        address, jobs = next(iter(self._waiting.items()))
        del self._waiting[address]
        job = jobs.popleft()
        if jobs:
            self._waiting[address] = jobs  # behind all others
        began = self._loop.time()
        try:
            job()
        finally:
            self._is_scheduled = bool(self._waiting)
            if self._waiting:
                self._loop.call_later(self._loop.time() - began, self._run_next)
