# SPDX-License-Identifier: Apache-2.0
"""Records how objects and nvidia-imex change over time, not only their final state.

Objects are recorded with `kubectl get --watch`, which shows every version. nvidia-imex has no
watch,
so a loop in its container queries it ten times a second, and restarts in each next container.
"""

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

from nvdra_testing import background
from nvdra_testing.cluster.compute_domains import Domain, Json
from nvdra_testing.cluster.kubectl import Kubectl

POLL_S = 0.1
MAX_POLLS = 3000
"""The loop ends by itself if nobody reads its output any more."""
POLL_SCRIPT = f"""
import subprocess, time

for _ in range({MAX_POLLS}):
    asked = ["nvidia-imex-ctl", "-c", "/imexd/imexd.cfg", "-N", "-j"]
    if subprocess.run(asked, stderr=subprocess.DEVNULL).returncode:
        print("null", flush=True)
    time.sleep({POLL_S})
"""


@dataclass(frozen=True)
class Observation:
    """Something observed at one moment.

    Attributes:
        at: Monotonic seconds.
        pod: The pod that it came from; empty for the API server.
        content: A watch event, or the answer of nvidia-imex; empty if it did not answer.
    """

    at: float
    pod: str
    content: Json


@dataclass
class Recording:
    """The observations so far, in order."""

    observations: list[Observation] = field(default_factory=list)

    def add(self, what: Json | None, pod: str = "") -> None:
        self.observations.append(Observation(time.monotonic(), pod, what or {}))

    def since(self, began: float) -> list[Observation]:
        """The observations after a moment."""
        return [each for each in self.observations if each.at >= began]


@dataclass
class ImexRecording(Recording):
    """The answers of nvidia-imex on one node."""

    def states(self, since: float = 0.0) -> list[str]:
        """The states of the domain in order, without repetitions and missing answers."""
        return [state for state, _ in groupby(self._states_since(since))]

    def seconds_until_up(self, began: float) -> float:
        """Seconds from a moment until the state became UP for good; 0 if it was always UP."""
        down = [each.at for each in self.since(began) if each.content.get("status") != "UP"]
        return down[-1] - began if down else 0.0

    def names(self) -> set[str]:
        """All names under which the node's nvidia-imex listed itself."""
        return {
            node["host"]
            for each in self.observations
            for node in each.content.get("nodes", {}).values()
            if node["hostName"] == each.pod
        }

    def _states_since(self, since: float) -> Iterator[str]:
        for each in self.since(since):
            if each.content:
                yield str(each.content["status"])


@contextlib.contextmanager
def record_versions(pods: Kubectl, *what: str) -> Iterator[Recording]:
    """Record every version of objects while the block runs; `what` is as for `kubectl get`."""
    record = Recording()
    argv = ["get", *what, "--watch", "--output-watch-events", "-o", "json"]
    with _read_documents(pods, argv, record.add):
        yield record


@contextlib.contextmanager
def record_imex(domain: Domain, node: str) -> Iterator[ImexRecording]:
    """Record the answers of nvidia-imex on a node while the block runs, across daemons."""
    answers = ImexRecording()

    def ask(stop: threading.Event) -> None:
        while not stop.is_set():
            pod = domain.daemons().get(node, "")
            if not pod:
                stop.wait(POLL_S)
                continue
            argv = ["exec", pod, "--", "python3", "-c", POLL_SCRIPT]
            add = partial(answers.add, pod=pod)
            with _read_documents(domain.cluster.driver_namespace, argv, add) as ended:
                while not ended.wait(POLL_S) and not stop.is_set():
                    pass
            if not stop.is_set():
                answers.add(None, pod)

    with background.running(ask):
        yield answers


@contextlib.contextmanager
def _read_documents(
    pods: Kubectl, arguments: list[str], note: Callable[[Json | None], None]
) -> Iterator[threading.Event]:
    """Run kubectl and pass on each JSON document that it prints; the event is set at its end."""
    ended = threading.Event()
    argv = [*pods.argv(), *arguments]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:

        def read() -> None:
            assert process.stdout is not None
            text, decoder = "", json.JSONDecoder()
            while data := process.stdout.read1():  # type: ignore[attr-defined]
                text = (text + data.decode()).lstrip()
                while (found := _document(decoder, text)) is not None:
                    what, length = found
                    note(what)
                    text = text[length:].lstrip()
            ended.set()

        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield ended
        finally:
            process.terminate()
            thread.join()


def _document(decoder: json.JSONDecoder, text: str) -> tuple[Any, int] | None:
    """The first document in a text and its length; None while it is incomplete."""
    try:
        return decoder.raw_decode(text)
    except ValueError:
        return None
