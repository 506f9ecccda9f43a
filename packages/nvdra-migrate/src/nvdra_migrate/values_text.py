# SPDX-License-Identifier: Apache-2.0
"""Values as YAML: read as helm reads them, within bounds, and written so that helm reads the same.

A few lines of YAML with aliases can stand for more values than a computer has memory, so the size
and the depth are added up while the values are made.
"""

import base64
import binascii
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import yaml
from nvdra_api import terminal_text, texts
from nvdra_api.json_text import MAX_DIGITS
from yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from nvdra_migrate import helm_scalars
from nvdra_migrate.helm_scalars import Scalar

MAX_BYTES: Final = 1 << 20
"""The longest text. Helm stores a release, with its values, in a Secret of at most 1 MiB."""
MAX_VALUES: Final = 30_000
"""How many values there may be, each alias counted as all that it stands for: half a second of
processor time. The reference's chart has 95."""
MAX_CHARACTERS: Final = 4 * MAX_BYTES
"""How long all values may be together, each alias counted as all that it stands for."""
MAX_DEPTH: Final = 64
"""The deepest nesting. Values are made by recursion; a pod template has 10 levels."""

_TITLE: Final = re.compile(r"\A\s*(USER-SUPPLIED|COMPUTED) VALUES:[ \t]*(\r?\n|\Z)")
"""What `helm get values` writes above the values, unless it is asked for YAML or JSON."""
_NUMBER: Final = re.compile("[-+]?[0-9][0-9a-zA-Z_.:]*")
"""How the numbers of YAML 1.1 look, in all their bases."""
_TAG: Final = "tag:yaml.org,2002:"
_COLLECTIONS: Final = {f"{_TAG}map", f"{_TAG}seq"}
_NOT_SPECIFIC: Final = {None, "", "!"}
_MERGE: Final = "<<"
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is 10 times faster
_Emitter: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class ValuesFileError(ValueError):
    """The file holds no values that can be read."""


class Reader:
    """Reads texts of YAML that belong together: the bounds are for all of them."""

    def __init__(self) -> None:
        self._values = 0
        self._characters = 0

    def documents(self, text: str) -> list[Any]:
        """Read every document, as helm would read it if it were the only one.

        Raises:
            ValuesFileError: It is not YAML, has what helm does not take or an unknown tag, or more
                than a bound.
        """
        events = yaml.parse(_TITLE.sub("", text, count=1), Loader=_Loader)
        try:
            return [
                _Document(self, events).node(next(events), 0).value
                for event in events
                if isinstance(event, DocumentStartEvent)
            ]
        except yaml.YAMLError as error:
            raise ValuesFileError(str(error)) from error

    def values(self, text: str) -> Mapping[str, Any]:
        """Read a text with nothing but values. helm reads the first document.

        Raises:
            ValuesFileError: As `documents`, or it is something else than a map.
        """
        first = next(iter(self.documents(text)), None)
        return as_values(first)

    def count(self, values: int, characters: int) -> None:
        """Count what has been read.

        Raises:
            ValuesFileError: It is more than a bound.
        """
        self._values += values
        self._characters += characters
        if self._values > MAX_VALUES:
            raise ValuesFileError(f"more than {MAX_VALUES} values, aliases included")
        if self._characters > MAX_CHARACTERS:
            raise ValuesFileError(f"more than {MAX_CHARACTERS} characters, aliases included")

    @property
    def counted(self) -> tuple[int, int]:
        """How many values and characters have been read."""
        return self._values, self._characters


def as_values(document: Any) -> Mapping[str, Any]:
    """A document as values: nothing is an empty map.

    Raises:
        ValuesFileError: It is something else than a map.
    """
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise ValuesFileError(f"a values file is a map, not {type(document).__name__}")
    return document


def write(values: Mapping[str, Any]) -> str:
    """The values, readable, and with escapes where a terminal would not show what is there."""
    text = _dump(values, allow_unicode=True)
    return text if terminal_text.lines(text) == text else _dump(values, allow_unicode=False)


class _Node(NamedTuple):
    """A value that has been read.

    Attributes:
        value: What helm reads.
        height: How many levels it has.
        size: How many values and characters it stands for.
    """

    value: Any
    height: int
    size: tuple[int, int]


class _Document:
    """Makes values of the events of one document."""

    def __init__(self, reader: Reader, events: Iterator[Event]) -> None:
        self._reader = reader
        self._events = events
        self._anchors: dict[str, _Node] = {}

    def node(self, event: Event, depth: int) -> _Node:
        """The value that begins with an event.

        Raises:
            ValuesFileError: As `Reader.documents`.
        """
        if isinstance(event, AliasEvent):
            return self._alias(event.anchor or "", depth)
        before = self._reader.counted
        value: Any
        if isinstance(event, ScalarEvent):
            self._reader.count(1, len(event.value))
            value, height = _scalar(event), 0
        elif isinstance(event, CollectionStartEvent):
            _check_depth(depth + 1)
            self._reader.count(1, 0)
            _check_tag(event.tag, _COLLECTIONS)
            is_list = isinstance(event, SequenceStartEvent)
            value, height = self._list(depth + 1) if is_list else self._map(depth + 1)
        else:
            raise ValuesFileError("a document is not complete")
        after = self._reader.counted
        made = _Node(value, height, (after[0] - before[0], after[1] - before[1]))
        if event.anchor:
            self._anchors[event.anchor] = made
        return made

    def _alias(self, anchor: str, depth: int) -> _Node:
        named = self._anchors.get(anchor)
        if named is None:  # or it stands for what contains it
            raise ValuesFileError(f"the alias {anchor} stands for nothing complete")
        _check_depth(depth + named.height)
        self._reader.count(*named.size)
        return named

    def _list(self, depth: int) -> tuple[list[Any], int]:
        items = []
        height = 0
        while not isinstance(event := next(self._events), SequenceEndEvent):
            item = self.node(event, depth)
            items.append(item.value)
            height = max(height, item.height)
        return items, height + 1

    def _map(self, depth: int) -> tuple[dict[str, Any], int]:
        """A map. Of the same key the last value counts, also where a merge brings it."""
        found: dict[str, Any] = {}
        height = 0
        while not isinstance(event := next(self._events), MappingEndEvent):
            key = self.node(event, depth)
            value = self.node(next(self._events), depth)
            height = max(height, key.height, value.height)
            if _is_merge(event):
                found |= _merged(value.value)
            else:
                found[_key(key.value)] = value.value
        return found, height + 1


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValuesFileError(f"nested more than {MAX_DEPTH} levels deep")


def _check_tag(tag: str | None, known: set[str]) -> None:
    if tag not in _NOT_SPECIFIC and tag not in known:
        raise ValuesFileError(f"the tag {tag} has no meaning for values")


def _is_merge(event: Event) -> bool:
    return (
        isinstance(event, ScalarEvent)
        and event.value == _MERGE
        and (event.implicit[0] or event.tag == f"{_TAG}merge")
    )


def _merged(value: Any) -> dict[str, Any]:
    """What a merge brings. Of several maps the first counts."""
    maps = value if isinstance(value, list) else [value]
    found: dict[str, Any] = {}
    for brought in reversed(maps):
        if not isinstance(brought, Mapping):
            raise ValuesFileError("what << merges is a map, or a list of maps")
        found |= brought
    return found


def _key(value: Any) -> str:
    key = None if isinstance(value, dict | list) else helm_scalars.key(value)
    if key is None:
        raise ValuesFileError(f"the key {str(value)[:40]!r} of a map is no text")
    return key


def _scalar(event: ScalarEvent) -> Scalar:
    text: str = event.value
    if texts.encodable(text) != text:
        raise ValuesFileError("a text has a lone surrogate, which is no character")
    kind = (event.tag or "").removeprefix(_TAG)
    looks_as_number = _NUMBER.fullmatch(text) is not None and not event.style
    if (kind in ("int", "float") or looks_as_number) and len(text) > MAX_DIGITS:
        raise ValuesFileError(f"a number has more than {MAX_DIGITS} digits")
    if event.tag in _NOT_SPECIFIC:
        is_plain = event.implicit[0] and event.tag != "!"
        value: Scalar = helm_scalars.read(text) if is_plain else text
    elif kind in ("str", "timestamp", "merge"):
        value = text
    elif kind == "binary":
        value = _decoded(text)
    else:
        _check_tag(event.tag, {f"{_TAG}{name}" for name in _TYPES})
        value = _typed(kind, text)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValuesFileError(f"{text} is no number that JSON has")
    return value


_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "null": (type(None),),
}


def _typed(kind: str, text: str) -> Scalar:
    """A scalar with the tag of a number, a boolean or nothing, with or without quotes."""
    value = helm_scalars.read(text)
    if type(value) not in _TYPES[kind]:
        raise ValuesFileError(f"{text[:40]!r} is no {kind}")
    return float(value) if kind == "float" and isinstance(value, int) else value


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(re.sub("[\r\n]", "", text), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValuesFileError("a value with the tag !!binary is no text in base64") from error


def _dump(values: Mapping[str, Any], *, allow_unicode: bool) -> str:
    dumped: str = yaml.serialize(_written(values), Dumper=_Emitter, allow_unicode=allow_unicode)
    return dumped


def _written(value: Any) -> yaml.Node:
    """A value as nodes, of its own each time: who edits one would not look for its aliases."""
    if isinstance(value, Mapping):
        pairs = [(_written(key), _written(inner)) for key, inner in value.items()]
        return yaml.MappingNode(f"{_TAG}map", pairs, flow_style=not pairs)
    if isinstance(value, list):
        items = [_written(item) for item in value]
        return yaml.SequenceNode(f"{_TAG}seq", items, flow_style=not items)
    if isinstance(value, str):
        # In quotes if helm would take it for something else.
        style = None if isinstance(helm_scalars.read(value), str) else "'"
        return yaml.ScalarNode(f"{_TAG}str", value, style=style)
    if value is None or isinstance(value, bool):
        kind = "null" if value is None else "bool"
        return yaml.ScalarNode(f"{_TAG}{kind}", json.dumps(value))
    text = str(value)
    if isinstance(value, float):
        text = text if "." in text else text.replace("e", ".0e")  # PyYAML knows no 1e+20
        return yaml.ScalarNode(f"{_TAG}float", text)
    return yaml.ScalarNode(f"{_TAG}int", text)
