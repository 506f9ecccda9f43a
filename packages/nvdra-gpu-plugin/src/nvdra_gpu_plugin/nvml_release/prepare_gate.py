# SPDX-License-Identifier: Apache-2.0
"""Keeps prepares from using GPUs while NVML is released.

A prepare passes the gate just before it verifies its GPUs, and is inside until its claim is
recorded. Waiting happens outside, so that no GPU is locked and nothing keeps a release waiting.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from nvdra_api.errors import DriverError
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.claims.device_wait_queue import NOTIFY_AFTER_S, DeviceWaitQueue, NotifyWaiting
from nvdra_runtime.process import timeouts


class PrepareGate:
    """The gate of one node. It is open at first.

    Attributes:
        error: Why the gate is closed, for prepares that wait too long; None while it is open.
    """

    def __init__(self, waits: DeviceWaitQueue) -> None:
        """Create it. `waits` ends the waits of claims that are to be unprepared."""
        self.error: DriverError | None = None
        self._waits = waits
        self._opened = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._inside_count = 0

    @property
    def is_open(self) -> bool:
        """Whether prepares may go on."""
        return self.error is None

    def open(self) -> None:
        """Let prepares go on."""
        self.error = None
        self._opened.set()

    def close(self, error: DriverError) -> None:
        """Let no more prepares in; `error` says why. A closed gate gets another error."""
        self.error = error
        self._opened.clear()

    async def wait_open(
        self, ref: ClaimRef, deadline: float, notify: NotifyWaiting | None = None
    ) -> None:
        """Return once a prepare may go on. The user is notified if it has to wait.

        Raises:
            DriverError: Why the gate is closed, at the deadline.
        """
        while (error := self.error) is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(NOTIFY_AFTER_S, notify, error) if notify else None
            try:
                async with self._waits.wait_until(ref, error, deadline):
                    await self._opened.wait()
            except DriverError:
                raise self.error or error from None  # it may know more by now
            finally:
                if timer is not None:
                    timer.cancel()

    async def wait_empty(self, timeout_s: float) -> bool:
        """Wait until no prepare is inside. Returns False if one still is at the end."""
        return await timeouts.wait_for_event(self._empty, timeout_s)

    @contextmanager
    def passed(self) -> Iterator[bool]:
        """Be inside for the block, unless the gate is closed; says which."""
        if not self.is_open:
            yield False
            return
        self._inside_count += 1
        self._empty.clear()
        try:
            yield True
        finally:
            self._inside_count -= 1
            if not self._inside_count:
                self._empty.set()
