# SPDX-License-Identifier: Apache-2.0
"""The whole corpus of documents, from one seed: the same on every machine."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from cdi_corpus import fields, mixtures, notations, rules, text
from cdi_corpus.documents import Case

SEED = "cdi 1.1.0"
_EACH = 12  # documents for each rule and field, on either side
_MIXTURES = 800

Kind = Literal["rule", "field", "notation", "mixture"]


@dataclass(frozen=True)
class Document:
    """One document of the corpus.

    Attributes:
        kind: Where it is from.
        subject: The rule or field it is for, or what it shows.
        data: Its bytes.
        case: What is known of it; rules and fields only.
    """

    kind: Kind
    subject: str
    data: bytes
    case: Case | None = None


def documents() -> Iterator[Document]:
    """All of them, in an order of their own."""
    for case in rules.cases(SEED, _EACH):
        yield Document("rule", case.subject, _bytes(case.tree, case.subject), case)
    for case in fields.cases(SEED, _EACH):
        yield Document("field", case.subject, _bytes(case.tree, case.subject), case)
    for subject, data in notations.all_of_them():
        yield Document("notation", subject, data)
    for index, tree in enumerate(mixtures.trees(SEED, _MIXTURES)):
        yield Document("mixture", f"mixture {index}", _bytes(tree, str(index)))


def _bytes(tree: object, name: str) -> bytes:
    return text.written(tree, random.Random(f"{SEED}/{name}/{tree}"))
