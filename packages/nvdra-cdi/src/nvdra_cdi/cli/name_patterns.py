# SPDX-License-Identifier: Apache-2.0
"""Patterns of device names, `nvidia.com/gpu=*`, as the command `cdi` of the CDI project takes them.

No name contains a character of a pattern. A `*` does not match a slash.
"""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

_SPECIAL = frozenset("*?[")


def is_pattern(text: str) -> bool:
    """Whether the text is a pattern and not a name."""
    return not _SPECIAL.isdisjoint(text)


def expand(wanted: Iterable[str], known: Sequence[str]) -> list[str]:
    """The names with patterns replaced by what they match, each name once.

    Args:
        wanted: Names and patterns. A name need not be known.
        known: All names, in the order in which a pattern gives them. A pattern that matches none of
            them is kept.
    """
    found: dict[str, None] = {}
    for text in wanted:
        matches = [name for name in known if _matches(name, text)] if is_pattern(text) else []
        found.update(dict.fromkeys(matches or [text]))
    return list(found)


def _matches(name: str, pattern: str) -> bool:
    parts, patterns = name.split("/"), pattern.replace("[^", "[!").split("/")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))
