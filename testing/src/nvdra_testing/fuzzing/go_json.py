# SPDX-License-Identifier: Apache-2.0
"""Which opaque parameters an API server stores: what Go takes for an object of JSON.

Python's decoder does not say it: it has limits of its own, which tenants are not bound by.
"""

import re
from typing import Final

_MAX_BYTES: Final = 10 << 10
"""Source: docs/reference/resource-slices.md, "Limits by version"."""
_MAX_DEPTH: Final = 10_000
"""What is nested deeper is no JSON for Go (encoding/json, maxNestingDepth)."""
_TOKEN: Final = re.compile(
    r"""[ \t\r\n]*(?:
        (?P<string>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")
      | (?P<scalar>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null)
      | (?P<mark>[][{}:,]) )""",
    re.VERBOSE,
)


def is_storable(data: bytes) -> bool:
    """Whether these bytes can be the opaque parameters of a claim."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return len(data) <= _MAX_BYTES and text.lstrip().startswith("{") and _is_json(text.rstrip())


def _is_json(text: str) -> bool:
    """Whether a text is one value of JSON. A stack of its own has no limit of depth but Go's."""
    position, stack, expected = 0, "", "value"
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            return False
        position, mark = token.end(), token["mark"] or ""
        is_end = bool(stack) and mark == stack[-1]
        if is_end and expected in ("rest", "first", "name or end"):
            stack, expected = stack[:-1], "rest"
        elif mark == "," and expected == "rest" and stack:
            expected = "name" if stack[-1] == "}" else "value"
        elif mark == ":" and expected == "colon":
            expected = "value"
        elif token["string"] and expected in ("name", "name or end"):
            expected = "colon"
        elif expected not in ("value", "first"):
            return False
        elif mark in ("[", "{") and mark:
            stack += "]" if mark == "[" else "}"
            expected = "first" if mark == "[" else "name or end"
            if len(stack) > _MAX_DEPTH:
                return False
        elif mark:
            return False
        else:
            expected = "rest"
    return expected == "rest" and not stack
