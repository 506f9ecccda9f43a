# SPDX-License-Identifier: Apache-2.0
"""A document as text: YAML in block or flow style, or JSON, whatever is in it.

The emitters of the packages under test take no part: these write what is no valid document too.
"""

import json
import random
import re
from dataclasses import dataclass
from typing import Any

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./=-]*[A-Za-z0-9/]|[b-mo-xzB-MO-XZ]", re.ASCII)
_WORDS = frozenset(("null", "true", "false", "yes", "no", "on", "off"))


@dataclass(frozen=True)
class Raw:
    """A scalar, or anything in flow style, that is written exactly so."""

    source: str


@dataclass(frozen=True)
class Twice:
    """The values of a field that is there twice."""

    first: Any
    second: Any


def written(value: Any, style: random.Random) -> bytes:
    """The document in one of three styles."""
    chosen = style.randrange(3)
    if chosen == 0:
        return _flow(value, style, quotes_all=True).encode()
    if chosen == 1:
        return (_flow(value, style, quotes_all=False) + "\n").encode()
    start = "---\n" if style.random() < 0.5 else ""
    return (start + "\n".join(_block(value, style, 0)) + "\n").encode()


def _pairs(value: dict[str, Any]) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, item in value.items():
        if isinstance(item, Twice):
            pairs += [(key, item.first), (key, item.second)]
        else:
            pairs.append((key, item))
    return pairs


def _flow(value: Any, style: random.Random, *, quotes_all: bool) -> str:
    if isinstance(value, dict):
        items = (
            f"{json.dumps(key, ensure_ascii=False)}: {_flow(item, style, quotes_all=quotes_all)}"
            for key, item in _pairs(value)
        )
        return f"{{{', '.join(items)}}}"
    if isinstance(value, list):
        return f"[{', '.join(_flow(item, style, quotes_all=quotes_all) for item in value)}]"
    return (
        json.dumps(value, ensure_ascii=False)
        if quotes_all and isinstance(value, str)
        else _scalar(value, style)
    )


def _block(value: Any, style: random.Random, column: int) -> list[str]:
    if isinstance(value, dict) and value:
        lines: list[str] = []
        for key, item in _pairs(value):
            head = f"{' ' * column}{_scalar(key, style)}:"
            if isinstance(item, dict | list) and item:
                lines += [head, *_block(item, style, column + 2)]
            else:
                lines.append(f"{head} {_scalar(item, style)}")
        return lines
    if isinstance(value, list) and value:
        lines = []
        for item in value:
            if isinstance(item, dict | list) and item:
                first, *rest = _block(item, style, column + 2)
                lines += [f"{' ' * column}- {first.lstrip()}", *rest]
            else:
                lines.append(f"{' ' * column}- {_scalar(item, style)}")
        return lines
    return [f"{' ' * column}{_scalar(value, style)}"]


def _scalar(value: Any, style: random.Random) -> str:
    if isinstance(value, Raw):
        return value.source
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _WORDS and style.random() < 0.7:
            return value
        if value.isprintable() and style.random() < 0.2:
            return "'" + value.replace("'", "''") + "'"
    return json.dumps(value, ensure_ascii=False)
