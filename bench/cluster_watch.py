# SPDX-License-Identifier: Apache-2.0
"""Watches collections of a cluster with `kubectl get --raw`, and records when each event came."""

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from queue import SimpleQueue
from typing import Any, NamedTuple

from nvdra_testing.cluster.kubectl import Kubectl

ESTABLISHED_S = 0.5
"""Time until a watch is established, which `kubectl` does not report."""


class Seen(NamedTuple):
    """An event of a watch, and the time of its arrival (`time.perf_counter`)."""

    at: float
    event: Any


@contextmanager
def events(kubectl: Kubectl, *paths: str) -> Iterator["SimpleQueue[Seen]"]:
    """Watch collections while the block runs. Yields the queue of their events.

    Args:
        kubectl: The cluster.
        paths: Paths of the collections, with an optional query.
    """
    seen: SimpleQueue[Seen] = SimpleQueue()
    with ExitStack() as stack:
        for path in paths:
            stack.enter_context(_watched(kubectl, path, seen))
        time.sleep(ESTABLISHED_S)
        yield seen


@contextmanager
def _watched(kubectl: Kubectl, path: str, seen: "SimpleQueue[Seen]") -> Iterator[None]:
    url = f"{path}{'&' if '?' in path else '?'}watch=true"
    argv = [kubectl.program, f"--kubeconfig={kubectl.kubeconfig}", "get", "--raw", url]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                seen.put(Seen(time.perf_counter(), json.loads(line)))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            process.wait()
            reader.join()
