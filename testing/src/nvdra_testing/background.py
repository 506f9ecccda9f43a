# SPDX-License-Identifier: Apache-2.0
"""Runs a function in a thread beside the test."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def running(function: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run a function during the block. It gets the event that tells it to return."""
    stop = threading.Event()
    thread = threading.Thread(target=function, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
