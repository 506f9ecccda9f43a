# SPDX-License-Identifier: Apache-2.0
"""Documents for each rule of docs/reference/cdi.md §4: such as keep it and such as break it, and
only it.
"""

import random
from collections.abc import Iterator

from cdi_corpus import documents, extra_rules, standard_rules, version_rules
from cdi_corpus.documents import Case
from cdi_corpus.table import RULES

GENERATORS = version_rules.made.by_rule | standard_rules.made.by_rule | extra_rules.made.by_rule
UNBREAKABLE = frozenset(("additionalGids", "spec edits", "null field"))
"""Rules that allow: there is no document that breaks them."""


def cases(seed: str, each: int) -> Iterator[Case]:
    """For every rule that many documents that keep it, and that many that break it."""
    for rule in RULES:
        for index in range(2 * each):
            keeps = index % 2 == 0 or rule.name in UNBREAKABLE
            rng = random.Random(f"{seed}/{rule.name}/{index}")
            tree = documents.plain(rng, ("1.1.0",))
            GENERATORS[rule.name](rng, tree, keeps)
            yield Case(rule.name, keeps or rule.is_extra, tree, is_writable=keeps)
