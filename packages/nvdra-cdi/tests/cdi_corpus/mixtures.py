# SPDX-License-Identifier: Apache-2.0
"""Documents in which anything may be there, kept or broken, several times over."""

import random
from collections.abc import Iterator
from typing import Any

from cdi_corpus import documents
from cdi_corpus.rules import GENERATORS

_LAST = ("a device", "null entry", "null field")  # what is put in later would mend these
_FIRST = tuple(name for name in GENERATORS if name not in _LAST)


def tree(rng: random.Random) -> Any:
    """One document; most keep all rules."""
    made = documents.plain(rng)
    if rng.random() < 0.7:
        made["cdiVersion"] = "1.1.0"
    for name in documents.some(rng, _FIRST, least=1, most=5):
        version = made.get("cdiVersion")
        GENERATORS[name](rng, made, rng.random() < 0.85)
        if version is not None and rng.random() < 0.6:
            made["cdiVersion"] = version
    if rng.random() < 0.15:
        GENERATORS[rng.choice(_LAST)](rng, made, rng.random() < 0.5)
    return made


def trees(seed: str, count: int) -> Iterator[Any]:
    """That many."""
    for index in range(count):
        yield tree(random.Random(f"{seed}/mixture/{index}"))
