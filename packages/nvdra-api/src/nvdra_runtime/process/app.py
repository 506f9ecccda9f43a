# SPDX-License-Identifier: Apache-2.0
"""Runs a process: its event loop, signals, exit code and final error messages."""

import asyncio
import gc
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator

from nvdra_api.errors import DriverError

from nvdra_runtime.process import open_files, output, stack_dump

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Each stops the process gracefully, as in the reference driver. As PID 1 none of them has a
default action (docs/reference/kubelet-plugin.md, "Signals, fork and PID 1")."""

SWITCH_INTERVAL_S = 0.0005
"""How soon a worker thread gets the interpreter while the loop is busy. CPython's default of 5 ms
is longer than a whole prepare."""


def run(
    main: Callable[[asyncio.Event], Awaitable[None]],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> int:
    """Run `main` until it returns; SIGTERM, SIGINT, SIGHUP and SIGQUIT set its event.

    The soft limit of open files is raised. SIGUSR2 dumps the stacks of all threads and tasks
    (`stack_dump`). The garbage collector leaves alone what there is before; a caller may disable it
    while it imports.

    Args:
        main: The program.
        loop_factory: Makes the event loop; None for asyncio's own.

    Returns:
        The exit code: 0, or 1 if `main` raised. In that case stderr ends with an `Error: …` line
        for each cause, after the stack trace of each cause that is a bug.
    """
    open_files.raise_soft_limit()
    stack_dump.install_signal_handler()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # What imports have made stays: to look through it again and again would stop all calls for the
    # time of several prepares.
    gc.freeze()
    gc.enable()
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(_until_stopped(main))
    except Exception as error:  # noqa: BLE001 - this is where every failure ends
        for cause in _causes(error):
            if not isinstance(cause, DriverError | OSError):
                output.print_error("".join(traceback.format_exception(cause)).rstrip())
            output.print_error(f"Error: {_sentence(cause)}")
        return 1
    return 0


async def _until_stopped(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    await main(stop)


def _causes(error: Exception) -> Iterator[Exception]:
    """The exceptions inside the groups that task groups wrap around them."""
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
