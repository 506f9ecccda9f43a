# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the answer to a case, and the file that keeps it."""

import base64
import json
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

_FRAME: Final = re.compile(r'File \\?"([^"\\]*?/(?:src|lib)/[^"\\]+)\\?", line (\d+)')
_OWN: Final = re.compile(r"(packages/[^/]+/src/|nvdra_testing/fuzzing/targets/)(.+)")
_ERROR: Final = re.compile(r"\b([A-Z]\w*(?:Error|Exception|Interrupt|Warning))\b")


class Kind(StrEnum):
    """What a case may not do."""

    DIED = "the process died"
    HANG = "no answer"
    SLOW = "too much processor time"
    MEMORY = "too much memory"
    WRONG_ANSWER = "an answer that explains nothing"
    UNEXPECTED = "an exception that is not declared"
    OTHERS = "another tenant was not answered"


@dataclass(frozen=True)
class Problem:
    """One fault of one case.

    Attributes:
        kind: What is wrong.
        text: The answer, or the end of the program's log.
    """

    kind: Kind
    text: str = ""

    @property
    def place(self) -> str:
        """The innermost line of ours in the text, with the error's type; or its end.

        Of a process that died it is the exit code: a caller may notice it in several ways.
        """
        errors = _ERROR.findall(self.text)
        frames = _FRAME.findall(self.text)
        if self.kind not in (Kind.HANG, Kind.OTHERS):  # faulthandler prints the innermost first
            frames.reverse()
        for file, line in frames:
            if (own := _OWN.search(file)) and "fuzzing" not in own[1]:
                return f"{errors[-1] if errors else ''} {own[2]}:{line}".strip()
        if errors or self.kind is Kind.DIED:
            return errors[-1] if errors else self.text.rpartition("\n")[2]
        return re.sub(r"[0-9a-f]{6,}|\d+", "N", self.text)[-160:]

    @property
    def signature(self) -> tuple[Kind, str]:
        """The same for cases of one fault."""
        return self.kind, self.place if self.kind not in (Kind.SLOW, Kind.MEMORY) else ""


@dataclass
class Fault:
    """A fault that was found.

    Attributes:
        target: Where.
        seed: Of the run.
        batch: The batch of the first case that showed it.
        seconds: When, since the target was opened.
        problem: What is wrong.
        case: The smallest input that is known.
        count: How many cases have shown it.
    """

    target: str
    seed: int
    batch: int
    seconds: float
    problem: Problem
    case: bytes
    count: int = 1

    def write(self, directory: Path, number: int) -> Path:
        """Keep it in a file; `python -m nvdra_testing.fuzzing --case FILE` tries it again."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self.target}-{self.seed}-{number}.json"
        kept = {
            "target": self.target,
            "seed": self.seed,
            "batch": self.batch,
            "seconds": round(self.seconds, 1),
            "kind": self.problem.kind,
            "place": self.problem.place,
            "count": self.count,
            "text": self.problem.text[-4000:],
            "shown": repr(self.case[:400]),
            "input": base64.b64encode(self.case).decode(),
        }
        path.write_text(json.dumps(kept, indent=1) + "\n")
        return path


def read_case(path: Path) -> tuple[str, bytes]:
    """The target and the input of a file that `Fault.write` has written."""
    kept = json.loads(path.read_text())
    return str(kept["target"]), base64.b64decode(kept["input"])
