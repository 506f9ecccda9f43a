# SPDX-License-Identifier: Apache-2.0
"""Sandboxes for synchronous tests: one loop, on a thread of its own, serves all of them."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.crash_campaigns import plugin_sandbox
from nvdra_testing.crash_campaigns.plugin_sandbox import PluginSandbox, TestedPlugin
from nvdra_testing.node.mps_pods import MpsPods

T = TypeVar("T")

OPEN_S = 60
CALL_S = 120
"""The longest time that a coroutine of a test may take."""


@dataclass(frozen=True)
class ThreadedSandbox:
    """A sandbox that can be used from any thread.

    Attributes:
        sandbox: The sandbox.
        pods: The MPS daemons of its node, which run whatever becomes of the plugin.
        loop: The loop that serves it.
    """

    sandbox: PluginSandbox
    pods: MpsPods
    loop: asyncio.AbstractEventLoop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the sandbox's loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(CALL_S)


@contextmanager
def open_sandboxes(
    server: ApiServer, count: int, tested: TestedPlugin, flags: Sequence[str] = ()
) -> Iterator[list[ThreadedSandbox]]:
    """Open this many sandboxes for a plugin with these flags until the block is left."""
    sandboxes: list[ThreadedSandbox] = []
    are_open, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        try:
            async with AsyncExitStack() as stack:
                for _ in range(count):
                    one = await stack.enter_async_context(
                        plugin_sandbox.open_sandbox(server, tested, flags)
                    )
                    pods = MpsPods(server, one.node)
                    await stack.enter_async_context(pods.serving())
                    sandboxes.append(ThreadedSandbox(one, pods, loops[0]))
                are_open.set()
                await stop.wait()
        finally:
            are_open.set()  # the waiting test finds that some are missing

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="sandboxes")
    thread.start()
    try:
        assert are_open.wait(OPEN_S), "the sandboxes take too long to open"
        assert len(sandboxes) == count, "a sandbox could not be opened: see the thread's error"
        yield sandboxes
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join()
