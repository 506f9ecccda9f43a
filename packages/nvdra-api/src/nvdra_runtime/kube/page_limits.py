# SPDX-License-Identifier: Apache-2.0
"""How many objects to ask for in one page of a list, so that a page has a few MiB. Pure.

The API server bounds the number of objects in an answer and not its size, and a user may create
hundreds of objects of 1.5 MB. So a list begins with few objects, and each page tells how many the
next one may have. An answer that is too long all the same is asked for again with fewer objects.
"""

from typing import Final

FIRST_LIMIT: Final = 16
"""Objects in the first page, whose size nothing tells yet."""
MAX_LIMIT: Final = 500
TARGET_BYTES: Final = 2 << 20
"""What a page is to have. As Python values it takes several times as much."""
MAX_BYTES: Final = 4 * TARGET_BYTES
"""What a page of several objects may have. More of it is not read."""

_GROWTH: Final = 2
"""How much larger the next limit may be: small objects may come before large ones."""
_SHRINKING: Final = 4


def next_limit(limit: int, count: int, size_bytes: int) -> int:
    """The limit of the page after one of `count` objects, which was asked for with `limit`."""
    fitting = TARGET_BYTES * count // max(size_bytes, 1)
    return max(1, min(fitting, _GROWTH * limit, MAX_LIMIT))


def smaller_limit(limit: int) -> int:
    """The limit of the page that is asked for again because its answer was too long."""
    return max(1, limit // _SHRINKING)
