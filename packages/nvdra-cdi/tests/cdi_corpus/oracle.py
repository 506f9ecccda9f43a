# SPDX-License-Identifier: Apache-2.0
"""The reference library in a process of its own: built once per source, asked line by line.

The program is Go, in ../oracle; what it is asked and answers is described there.
"""

import base64
import hashlib
import json
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nvdra_lab import environment
from nvdra_lab.artifacts import binaries

SOURCE = Path(__file__).parents[1] / "oracle"
REFERENCE = "go.mod"
"""The library that decides: 1.1.1."""

IN_RUNTIMES = "library-1.0.1.mod"
"""The one inside of containerd 2.1, which decodes YAML 1.1 and knows versions up to 1.0.0."""


class Oracle:
    """Asks the process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """What the library says; `error` is there where it refuses, `panic` where it crashes."""
        (answer,) = self._answers([{"op": op, **arguments}])
        return answer

    def specs(self, documents: Iterable[bytes]) -> list[dict[str, Any]]:
        """What it makes of each document."""
        return self._answers(
            [{"op": "spec", "data": base64.b64encode(each).decode()} for each in documents]
        )

    def _answers(self, questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One for each question, which are written ahead: a switch of processes costs the most."""
        writer = threading.Thread(target=self._write, args=(questions,))
        writer.start()
        assert self._process.stdout is not None
        answers = [json.loads(self._process.stdout.readline()) for _ in questions]
        writer.join()
        return answers

    def _write(self, questions: list[dict[str, Any]]) -> None:
        assert self._process.stdin is not None
        for question in questions:
            self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()


@contextmanager
def running(modules: str = REFERENCE) -> Iterator[Oracle]:
    """The process with one of the libraries, built if need be, until the block ends."""
    pipe = subprocess.PIPE
    with subprocess.Popen([built(modules)], stdin=pipe, stdout=pipe, text=True) as process:
        yield Oracle(process)
        assert process.stdin is not None
        process.stdin.close()


def built(modules: str) -> Path:
    """The program, from the build cache or built into it; named after its source."""
    places = environment.read()
    files = ("main.go", modules, modules.replace(".mod", ".sum"))
    digest = hashlib.sha256(b"".join((SOURCE / name).read_bytes() for name in files)).hexdigest()
    program = places.cache.binaries / f"cdi-oracle-{digest[:16]}" / "cdi-oracle"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as folder:
            unfinished = Path(folder) / program.name
            subprocess.run(
                [binaries.find_go(places), "build", f"-modfile={modules}", "-o", unfinished, "."],
                cwd=SOURCE,
                env={
                    **places.variables,
                    "CGO_ENABLED": "0",
                    "GOFLAGS": "-buildvcs=false -trimpath",
                },
                check=True,
            )
            unfinished.rename(program)
    return program
