"""The outermost frame of a process: its loop, its signals, its exit code and last words."""

import asyncio
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator

from nvdra_api.runtime.process import stacks
from nvdra_api.types.errors import DriverError

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Each means a graceful stop, as in the reference; as PID 1 none has a default (kubelet §8.6)."""

SWITCH_INTERVAL_S = 0.0005
"""How soon a worker's finished call gets the interpreter while the loop is busy; CPython's 5 ms
would be longer than a whole prepare."""


def run(main: Callable[[asyncio.Event], Awaitable[None]]) -> int:
    """Run `main` until it returns; SIGTERM, SIGINT, SIGHUP and SIGQUIT set its event.

    SIGUSR2 tells what a hanging plugin is doing (`stacks`).

    Returns:
        The exit code: 0, or 1 when `main` raised. Then stderr ends with an `Error: …` line per
        cause, above it the stack of what is no known failure but a bug.
    """
    stacks.on_signal()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        asyncio.run(_until_stopped(main))
    except Exception as error:  # noqa: BLE001 - this is where every failure ends
        for cause in _causes(error):
            if not isinstance(cause, DriverError | OSError):
                traceback.print_exception(cause)
            sys.stderr.write(f"Error: {_sentence(cause)}\n")
        return 1
    return 0


async def _until_stopped(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    await main(stop)


def _causes(error: Exception) -> Iterator[Exception]:
    """What really happened, below the groups that task groups wrap around it."""
    if not isinstance(error, ExceptionGroup):
        yield error
        return
    for inner in error.exceptions:
        yield from _causes(inner)


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, DriverError | OSError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
