# SPDX-License-Identifier: Apache-2.0
"""Which known name was perhaps meant. Pure.

To compare one name with all takes a millisecond, and a file of a megabyte has 40,000 names.
"""

import difflib
from collections.abc import Iterable
from typing import Final

_MAX_COMPARED: Final = 100


class NearNames:
    """The names that are known, for the unknown ones of one file."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = tuple(known)
        self._left = _MAX_COMPARED

    def nearest(self, name: str) -> str:
        """The most similar one; empty if there is none, or if too many have been compared."""
        if not self._left:
            return ""
        self._left -= 1
        return next(iter(difflib.get_close_matches(name, self._known, n=1)), "")
