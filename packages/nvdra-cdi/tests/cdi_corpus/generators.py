# SPDX-License-Identifier: Apache-2.0
"""How generators of rules are collected, and the shapes that many of them share.

A generator takes a random source, a valid document of version 1.1.0, and whether the rule is to be
kept; it changes the document in place, so that only this rule is broken if any.
"""

import random
from collections.abc import Callable
from typing import Any

from cdi_corpus import documents
from cdi_corpus.documents import Tree
from cdi_corpus.table import VERSIONS

Random = random.Random
Generator = Callable[[Random, Tree, bool], None]


class Generators:
    """Generators by the rule they are for."""

    def __init__(self) -> None:
        self.by_rule: dict[str, Generator] = {}

    def of(self, rule: str) -> Callable[[Generator], Generator]:
        """The function below is for that rule."""

        def registered(generator: Generator) -> Generator:
            self.by_rule[rule] = generator
            return generator

        return registered

    def needs(self, since: str, rule: str) -> Callable[[Callable[[Random, Tree], None]], None]:
        """What the function below puts into a document needs that version: it gets it, or not."""

        def registered(use: Callable[[Random, Tree], None]) -> None:
            @self.of(rule)
            def generator(rng: Random, tree: Tree, keeps: bool) -> None:
                use(rng, tree)
                at = VERSIONS.index(since)
                allowed = VERSIONS[at:] if keeps else VERSIONS[:at]
                tree["cdiVersion"] = rng.choice(("", "v")) + rng.choice(allowed)

        return registered

    def value(self, rule: str, fields: str, good: tuple[Any, ...], bad: tuple[Any, ...]) -> None:
        """A rule about the value of a field, `Owner.key`, or of several alike, `Owner.key other`.

        `None` among the values: the field is not there.
        """
        owner, _, keys = fields.partition(".")

        @self.of(rule)
        def generator(rng: Random, tree: Tree, keeps: bool) -> None:
            value, key = rng.choice(good if keeps else bad), rng.choice(keys.split())
            target = documents.any_object(rng, tree, owner)
            target.pop(key, None)
            if value is not None:
                target[key] = value
