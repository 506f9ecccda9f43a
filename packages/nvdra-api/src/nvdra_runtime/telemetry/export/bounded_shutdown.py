# SPDX-License-Identifier: Apache-2.0
"""Shutdown of the exports, with a bound: the SDK's own shutdown may block for 30 s.

Source: docs/reference/tracing.md, "Spans" (Export).
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol

FLUSH_TIMEOUT_S: Final = 3.0
"""How long the shutdown waits for the collector; the kubelet gives a pod 30 s in all."""


class Export(Protocol):
    """Something that sends telemetry on a thread of its own."""

    def shutdown(self) -> None:
        """Send what is waiting and end. Blocks."""

    def abandon(self) -> None:
        """Drop what is waiting, because the time for `shutdown` is up."""


@asynccontextmanager
async def shut_down_on_exit(
    exports: Sequence[Export], timeout_s: float = FLUSH_TIMEOUT_S
) -> AsyncIterator[None]:
    """Shut the exports down when the block ends, and abandon those that take too long.

    Leaving the block takes at most `timeout_s`.
    """
    try:
        yield
    finally:
        loop = asyncio.get_running_loop()
        done = [asyncio.Event() for _ in exports]

        def shut_down(export: Export, done: asyncio.Event) -> None:
            export.shutdown()
            with suppress(RuntimeError):  # the loop is closed, and nothing waits any longer
                loop.call_soon_threadsafe(done.set)

        for each in zip(exports, done, strict=True):
            # A daemon thread: an unresponsive collector must not keep the process from ending.
            threading.Thread(target=shut_down, args=each, name="otlp-shutdown", daemon=True).start()
        try:
            async with asyncio.timeout(timeout_s):
                for event in done:
                    await event.wait()
        except TimeoutError:
            for export, event in zip(exports, done, strict=True):
                if not event.is_set():
                    export.abandon()
