# SPDX-License-Identifier: Apache-2.0
"""Both sides asked for every document, and what there is to say about the answers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from nvdra_cdi import codec, validation, version
from nvdra_cdi.model import Spec

from cdi_corpus import differences, nodes, verdicts
from cdi_corpus.corpus import Document
from cdi_corpus.differences import READING, WRITING, Difference, Seen
from cdi_corpus.oracle import Oracle
from cdi_corpus.verdicts import VALID, Reading

_SHOWN = 2000  # bytes of a document in a message


@dataclass(frozen=True)
class Compared:
    """What both sides say of a document.

    Attributes:
        document: It.
        ours: Our reading.
        theirs: The reference library's.
        spec: What we decode it to, if it is valid to us.
        explained: The intended differences that account for their not being equal.
        unwritable: Problems for which only we would not write it, each with those that account.
        changes: What is not the same to the reference library after we have saved it.
    """

    document: Document
    ours: Reading
    theirs: Reading
    spec: Spec | None = None
    explained: tuple[str, ...] = ()
    unwritable: dict[str, tuple[str, ...]] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)

    @property
    def is_unexplained(self) -> bool:
        """Whether they differ, and no intended difference says why."""
        return not is_equal(self.ours, self.theirs) and not self.explained

    def __str__(self) -> str:
        shown = self.document.data[:_SHOWN].decode(errors="replace")
        sides = f"ours: {self.ours}\ntheirs: {self.theirs}\nunwritable: {self.unwritable}"
        return f"{self.document.subject}\n{sides}\nchanges: {self.changes}\n{shown}"


@dataclass(frozen=True)
class _Saved:
    """A document that we saved, and the structure that the reference library should find in it."""

    of: Compared
    how: str
    data: bytes
    expected: dict[str, Any]


def is_equal(ours: Reading, theirs: Reading) -> bool:
    """Whether both say the same: valid or not, for which rule, from which version on."""
    return (ours.verdict, ours.minimum) == (theirs.verdict, theirs.minimum)


def compare(documents: Iterable[Document], oracle: Oracle) -> list[Compared]:
    """Each document with what both sides say."""
    given = list(documents)
    answers = oracle.specs(document.data for document in given)
    found: list[Compared] = []
    saved: list[_Saved] = []
    for document, answer in zip(given, answers, strict=True):
        ours, spec = verdicts.ours(document.data)
        each = _compared(document, ours, spec, verdicts.theirs(answer))
        found.append(each)
        if each.spec is not None and each.theirs.verdict == VALID:
            saved.extend(_saved(each, each.spec, answer["spec"]))
    for again, answer in zip(saved, oracle.specs(each.data for each in saved), strict=True):
        if "error" in answer or answer["spec"] != again.expected:
            again.of.changes.append(f"{again.how}: {answer} is not {again.expected}")
    return found


def _compared(document: Document, ours: Reading, spec: Spec | None, theirs: Reading) -> Compared:
    explained: tuple[str, ...] = ()
    if not is_equal(ours, theirs):
        seen = Seen(document.data, nodes.root_of(document.data), ours, theirs)
        explained = _explaining(READING, seen)
    if spec is None or ours.verdict != VALID:
        return Compared(document, ours, theirs, None, explained)
    problems = map(str, validation.problems(spec))
    unwritable = {problem: _explaining(WRITING, problem) for problem in problems}
    return Compared(document, ours, theirs, spec, explained, unwritable)


def _explaining(table: tuple[Difference, ...], seen: Any) -> tuple[str, ...]:
    return tuple(differences.explaining(table, seen))


def _saved(compared: Compared, spec: Spec, meaning: dict[str, Any]) -> Iterator[_Saved]:
    yield _Saved(compared, "YAML", codec.dumps(spec, "yaml"), meaning)
    lowest = replace(spec, version=version.minimum_required(spec))
    expected = meaning | {"cdiVersion": lowest.version}
    yield _Saved(compared, "JSON of its lowest version", codec.dumps(lowest, "json"), expected)
