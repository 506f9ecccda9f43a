# SPDX-License-Identifier: Apache-2.0
"""Write dictionaries, lists, strings, integers and booleans as YAML.

The layout is that of the reference library: `---` first, block style, nested blocks at the next
multiple of four columns, a mapping in a sequence directly after its dash. A string that YAML 1.1 or
1.2 could read as another type is quoted, because runtimes use parsers of both versions.
"""

import re
from collections.abc import Iterator
from typing import TypeAlias

from yaml.nodes import ScalarNode
from yaml.resolver import Resolver

PlainData: TypeAlias = "str | int | bool | dict[str, PlainData] | list[PlainData]"

_STEP = 4
_STRING = "tag:yaml.org,2002:str"
_PLAIN_SCALAR = re.compile(
    r"(?:[A-Za-z0-9_./]|-{1,2}(?=[A-Za-z]))[A-Za-z0-9_./:=@%+,~-]*(?<!:)", re.ASCII
)
_LOOKS_TYPED = (
    re.compile(  # types that PyYAML's resolver does not know: y and n, numbers of Go and YAML 1.2
        r"[yYnN]"
        r"|\.{3}"
        r"|[-+]?0[xXoObB][0-9a-fA-F_]+"
        r"|[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.[0-9_]+(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?",
        re.ASCII,
    )
)
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_resolver = Resolver()


def document(value: dict[str, PlainData]) -> str:
    """One YAML document. Keys keep their order."""
    lines = _mapping(value, 0) if value else iter(["{}"])
    return "---\n" + "".join(f"{line}\n" for line in lines)


def _mapping(value: dict[str, PlainData], column: int) -> Iterator[str]:
    for key, item in value.items():
        head = f"{' ' * column}{_scalar(key)}:"
        inside = column + _STEP - column % _STEP
        if isinstance(item, dict) and item:
            yield head
            yield from _mapping(item, inside)
        elif isinstance(item, list) and item:
            yield head
            yield from _sequence(item, inside)
        else:
            yield f"{head} {_scalar(item)}"


def _sequence(value: list[PlainData], column: int) -> Iterator[str]:
    for item in value:
        if isinstance(item, dict) and item:
            first, *rest = _mapping(item, column + 2)
            yield f"{' ' * column}- {first.lstrip()}"
            yield from rest
        else:
            yield f"{' ' * column}- {_scalar(item)}"


def _scalar(value: PlainData) -> str:
    if isinstance(value, str):
        return value if _stays_a_string(value) else _quoted(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "{}" if isinstance(value, dict) else str(value)


def _stays_a_string(text: str) -> bool:
    return (
        _PLAIN_SCALAR.fullmatch(text) is not None
        and _LOOKS_TYPED.fullmatch(text) is None
        and _resolver.resolve(ScalarNode, text, (True, False)) == _STRING  # type: ignore[no-untyped-call]
    )


def _quoted(text: str) -> str:
    return '"' + "".join(_ESCAPES.get(char) or escaped(char) for char in text) + '"'


def escaped(char: str) -> str:
    """The character, escaped if some YAML or JSON parser does not accept it as it is.

    YAML and JSON escape characters above U+FFFF differently. All parsers accept them unescaped.
    """
    return char if char.isprintable() or ord(char) > 0xFFFF else f"\\u{ord(char):04x}"
