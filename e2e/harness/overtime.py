"""What there is over time, and not only at the end: objects by a watch, nvidia-imex by asking it.

A watch of kubectl tells every version of an object that the API server had. nvidia-imex has no
watch; a loop beside it in its container asks ten times a second, and begins anew in each next one.
"""

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from kubectl import Kubectl
from members import Domain, Json

LOOK_S = 0.1
LOOKS = 1500
"""A loop that nobody reads any more ends by itself."""
ASK = (
    f"i=0; while [ $i -lt {LOOKS} ]; do i=$((i+1)); "
    f"nvidia-imex-ctl -c /imexd/imexd.cfg -N -j 2>/dev/null || echo null; sleep {LOOK_S}; done"
)


@dataclass(frozen=True)
class Seen:
    """Something at one moment.

    Attributes:
        at: Monotonic seconds.
        pod: Who said it; empty for the API server.
        what: A watch event; or the answer of nvidia-imex, empty for none.
    """

    at: float
    pod: str
    what: Json


@dataclass
class Record:
    """What was seen so far, in order."""

    seen: list[Seen] = field(default_factory=list)

    def note(self, what: Json | None, pod: str = "") -> None:
        self.seen.append(Seen(time.monotonic(), pod, what or {}))

    def since(self, began: float) -> list[Seen]:
        """What was seen after a moment."""
        return [each for each in self.seen if each.at >= began]


@dataclass
class Answers(Record):
    """What nvidia-imex on one node answered."""

    def states(self, since: float = 0.0) -> list[str]:
        """The states of the domain in their order; one that stays counts once, silence not."""
        return [state for state, _ in groupby(self._answered(since))]

    def up_after(self, began: float) -> float:
        """Seconds from a moment until it last became UP; nought if it always was."""
        down = [each.at for each in self.since(began) if each.what.get("status") != "UP"]
        return down[-1] - began if down else 0.0

    def names(self) -> set[str]:
        """Every name that the node's own nvidia-imex ever took itself to have."""
        nodes = [node for each in self.seen for node in each.what.get("nodes", {}).values()]
        return {node["host"] for node in nodes if node["local"]}

    def _answered(self, since: float) -> Iterator[str]:
        for each in self.since(since):
            if each.what:
                yield str(each.what["status"])


@contextlib.contextmanager
def watched(pods: Kubectl, *what: str) -> Iterator[Record]:
    """Every version of objects while the block runs; `what` is as for `kubectl get`."""
    record = Record()
    argv = ["get", *what, "--watch", "--output-watch-events", "-o", "json"]
    with _reading(pods, argv, record.note):
        yield record


@contextlib.contextmanager
def asked(domain: Domain, node: str) -> Iterator[Answers]:
    """What nvidia-imex on a node answers while the block runs, of whichever daemon is there."""
    answers, stop = Answers(), threading.Event()

    def ask() -> None:
        while not stop.is_set():
            pod = domain.daemons().get(node, "")
            if not pod:
                stop.wait(LOOK_S)
                continue
            argv = ["exec", pod, "--", "sh", "-c", ASK]
            with _reading(
                domain.cluster.driver, argv, lambda what, pod=pod: answers.note(what, pod)
            ) as ended:
                while not ended.wait(LOOK_S) and not stop.is_set():
                    pass
            if not stop.is_set():
                answers.note(None, pod)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def _reading(
    pods: Kubectl, arguments: list[str], note: Callable[[Json | None], None]
) -> Iterator[threading.Event]:
    """Run kubectl and note each JSON document that it prints; the event is set at its end."""
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
    """The first document of a text and its length; None while it is not whole."""
    try:
        return decoder.raw_decode(text)
    except ValueError:
        return None
