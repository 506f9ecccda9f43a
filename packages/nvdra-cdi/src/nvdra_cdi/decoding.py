"""A YAML node tree to a `Spec`, strictly and by the type of each field (spec/cdi.md §5).

Works below YAML's own typing, on the source text of scalars, because a CDI name may look like a
number and Go's decoders read it as a name. Aliases are followed; how much they may blow up is
limited.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, assert_never

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from nvdra_cdi import composing, version
from nvdra_cdi.composing import MAX_BYTES, MAX_NODES, is_null, line_of
from nvdra_cdi.errors import CodecError, Problem
from nvdra_cdi.fields import FIELDS, Flag, Items, Kind, Number, Object, Text, TextMap
from nvdra_cdi.model import (
    ContainerEdits,
    Device,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    Spec,
)

_MOST_PROBLEMS = 1000
"""Who has more than these looks at them first; a hostile document could have 100,000."""

_MAX_DIGITS = 64  # no number of the standard needs more than 20
_MERGE = "tag:yaml.org,2002:merge"
_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "timestamp", "merge", "value")
)
_INTEGER = re.compile(
    r"(?P<sign>[-+]?)(?:0[xX](?P<hex>[0-9a-fA-F]+)|0[oO]?(?P<octal>[0-7]+)|(?P<decimal>0|[1-9][0-9]*))",
    re.ASCII,
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_TRUE = frozenset(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON", "y", "Y"))
_FALSE = frozenset(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF", "n", "N"))
_REQUIRED: Mapping[type, Mapping[str, Any]] = {
    Spec: {"kind": "", "devices": ()},
    Device: {"name": ""},
    DeviceNode: {"path": ""},
    NetDevice: {"host_interface_name": "", "name": ""},
    Hook: {"hook_name": "", "path": ""},
    Mount: {"host_path": "", "container_path": ""},
    ContainerEdits: {},
    IntelRdt: {},
}


class _Unfit(Exception):
    """What is there cannot be what the field takes; the problem is noted already."""


def spec(data: bytes) -> Spec:
    """The first document of `data`; missing fields are left for validation.

    Raises:
        CodecError: It is no CDI document; with everything that has not the shape of one.
    """
    decoder = _Decoder()
    return decoder.spec(composing.first_node(data))


def _is_unquoted(node: Node) -> bool:
    return isinstance(node, ScalarNode) and not node.style


class _Decoder:
    """One pass over one document; notes what is wrong, and counts what aliases unfold to."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []
        self._ended: list[Problem] = []
        self._nodes = 0
        self._bytes = 0
        self._merging: set[int] = set()

    def spec(self, node: Node) -> Spec:
        """The document.

        Raises:
            CodecError: It is none.
        """
        with suppress(_Unfit):
            decoded = self._object(node, Spec, "")
            if decoded.version.removeprefix("v") == version.CURRENT:
                self._problems += self._ended
        if self._problems:
            raise self._refused()
        assert isinstance(decoded, Spec)
        return decoded

    def _object(self, node: Node, model: type, path: str) -> Any:
        by_key = {field.key: field for field in FIELDS[model]}
        values: dict[str, Any] = dict(_REQUIRED[model])
        for key, item in self._pairs(node, path):
            where = f"{path}.{key}" if path else key
            if key not in by_key:
                self._note(item, where, "unknown field", _meant(key, by_key))
                continue
            if until := by_key[key].until:
                message = f"unknown field: {until} was the last version to have it"
                remedy = f"lower cdiVersion to {until}"
                self._ended.append(_problem(item, where, message, remedy))
            if not is_null(item):
                with suppress(_Unfit):
                    values[by_key[key].attribute] = self._value(item, by_key[key].kind, where)
        return model(**values)

    def _value(self, node: Node, kind: Kind, path: str) -> Any:
        match kind:
            case Text():
                return self._text(node, path)
            case Number():
                return self._number(node, kind, path)
            case Flag():
                return self._flag(node, path)
            case TextMap():
                return self._text_map(node, path)
            case Items():
                return self._items(node, kind.of, path)
            case Object():
                return self._object(node, kind.model, path)
            case _:
                assert_never(kind)

    def _text_map(self, node: Node, path: str) -> dict[str, str]:
        values: dict[str, str] = {}
        for key, item in self._pairs(node, path):
            with suppress(_Unfit):
                values[key] = "" if is_null(item) else self._text(item, f"{path}.{key}")
        return values

    def _items(self, node: Node, of: Kind, path: str) -> tuple[Any, ...]:
        self._count(node, path)
        if not isinstance(node, SequenceNode):
            raise self._unfit(node, path, "must be a list", "put [ ] around it")
        values: list[Any] = []
        for index, item in enumerate(node.value):
            where = f"{path}[{index}]"
            if is_null(item):
                self._note(item, where, "an entry of a list must not be null", "remove it")
                continue
            with suppress(_Unfit):
                values.append(self._value(item, of, where))
        return tuple(values)

    def _pairs(self, node: Node, path: str) -> list[tuple[str, Node]]:
        self._count(node, path)
        here = path or "the document"
        if not isinstance(node, MappingNode):
            raise self._unfit(node, here, "must be a mapping", "write name: value")
        pairs: dict[str, Node] = {}
        merged: Node | None = None
        for key_node, item in node.value:
            with suppress(_Unfit):
                key = self._text(key_node, here)
                if key in pairs or (key == "<<" and merged is not None):
                    where = f"{path}.{key}" if path else key
                    self._note(key_node, where, "the field is there twice", "keep one of them")
                elif key_node.tag == _MERGE:
                    merged = item
                else:
                    pairs[key] = item
        if merged is not None:
            pairs = {**self._merged(node, merged, path), **pairs}
        return list(pairs.items())

    def _merged(self, node: Node, merged: Node, path: str) -> dict[str, Node]:
        """What `<<: *anchor` brings; of several mappings an earlier one wins."""
        if id(node) in self._merging:
            here = path or "the document"
            raise self._unfit(node, here, "the mapping is merged into itself", "remove <<")
        self._merging.add(id(node))
        mappings = merged.value if isinstance(merged, SequenceNode) else [merged]
        pairs: dict[str, Node] = {}
        for mapping in reversed(mappings):
            with suppress(_Unfit):
                pairs.update(self._pairs(mapping, path))
        self._merging.remove(id(node))
        return pairs

    def _text(self, node: Node, path: str) -> str:
        self._count(node, path)
        if not isinstance(node, ScalarNode) or node.tag not in _PLAIN_TAGS:
            raise self._unfit(node, path, "must be a string", "write one value")
        text: str = node.value
        if not text.isascii() and _SURROGATE.search(text):  # PyYAML without libyaml lets them in
            raise self._unfit(
                node, path, f"{text!r} is no Unicode text", "correct the escape in it"
            )
        self._bytes += len(text)
        return text

    def _number(self, node: Node, kind: Number, path: str) -> int:
        text = self._text(node, path)
        match = _INTEGER.fullmatch(text) if _is_unquoted(node) else None
        if match is None:
            message = f"{text!r} is no whole number"
            raise self._unfit(node, path, message, "write digits without quotes")
        bases = {"hex": 16, "octal": 8, "decimal": 10}
        notation = next(name for name in bases if match[name] is not None)
        is_long = len(text) > _MAX_DIGITS
        value = (
            kind.highest + 1 if is_long else int(match["sign"] + match[notation], bases[notation])
        )
        if not kind.lowest <= value <= kind.highest:
            message = f"{text} is not in {kind.lowest}…{kind.highest}"
            raise self._unfit(node, path, message, "correct the number")
        return value

    def _flag(self, node: Node, path: str) -> bool:
        text = self._text(node, path)
        if not _is_unquoted(node) or text not in _TRUE | _FALSE:
            message = f"{text!r} is neither true nor false"
            raise self._unfit(node, path, message, "write one of them")
        return text in _TRUE

    def _count(self, node: Node, path: str) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES or self._bytes > MAX_BYTES:
            message = "the document unfolds to more than is allowed"
            self._problems.append(_problem(node, path, message, composing.SPLIT))
            raise self._refused()

    def _unfit(self, node: Node, path: str, message: str, remedy: str) -> _Unfit:
        self._note(node, path, message, remedy)
        return _Unfit()

    def _note(self, node: Node, path: str, message: str, remedy: str) -> None:
        self._problems.append(_problem(node, path, message, remedy))
        if len(self._problems) >= _MOST_PROBLEMS:
            raise self._refused()

    def _refused(self) -> CodecError:
        return CodecError(tuple(sorted(self._problems, key=lambda problem: problem.line)))


def _meant(key: str, known: Iterable[str]) -> str:
    near = next((field for field in known if field.lower() == key.lower()), None)
    return f"{near} was meant?" if near else f"the fields here are {', '.join(known)}"


def _problem(node: Node, path: str, message: str, remedy: str) -> Problem:
    return Problem(path, message, line=line_of(node), remedy=remedy)
