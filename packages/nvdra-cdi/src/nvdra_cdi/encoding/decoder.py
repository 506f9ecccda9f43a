# SPDX-License-Identifier: Apache-2.0
"""Decode a YAML node tree into a `Spec`, strictly, by the type of each field.

The decoder ignores YAML's implicit types and reads the source text of scalars: a CDI name may look
like a number, and Go's decoders read it as a name. Aliases are followed up to a size limit.

Source: docs/reference/cdi.md §5.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, assert_never

from yaml.events import ScalarEvent
from yaml.nodes import MappingNode, SequenceNode

from nvdra_cdi import version
from nvdra_cdi.encoding import yaml_nodes
from nvdra_cdi.encoding.fields import (
    FIELDS,
    STRING,
    Boolean,
    Field,
    FieldType,
    Integer,
    ListOf,
    Object,
    String,
    StringMap,
    is_unicode,
)
from nvdra_cdi.encoding.yaml_nodes import (
    MAX_BYTES,
    MAX_NODES,
    NULLS,
    Node,
    is_merge_key,
    is_null,
    line_of,
)
from nvdra_cdi.errors import MAX_PROBLEMS, CodecError, Problem
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

_MAX_DIGITS = 64  # no number in the CDI specification needs more than 20
_SCALAR_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "timestamp", "merge", "value")
) | {None, "!"}
_INTEGER = re.compile(
    r"(?P<sign>[-+]?)(?:0[xX](?P<hex>[0-9a-fA-F]+)|0[oO]?(?P<octal>[0-7]+)|(?P<decimal>0|[1-9][0-9]*))",
    re.ASCII,
)
_TRUE = frozenset(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON", "y", "Y"))
_FALSE = frozenset(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF", "n", "N"))
_DEFAULTS: Mapping[type, Mapping[str, Any]] = {
    Spec: {"kind": "", "devices": ()},
    Device: {"name": ""},
    DeviceNode: {"path": ""},
    NetDevice: {"host_interface_name": "", "name": ""},
    Hook: {"hook_name": "", "path": ""},
    Mount: {"host_path": "", "container_path": ""},
    ContainerEdits: {},
    IntelRdt: {},
}


_BY_KEY: Mapping[type, Mapping[str, Field]] = {
    model: {field.key: field for field in fields} for model, fields in FIELDS.items()
}


class _WrongType(Exception):
    """The value has the wrong type for its field. The problem has been recorded."""


def decode(data: bytes) -> Spec:
    """Decode the first document in `data`. Validation reports missing fields.

    Raises:
        CodecError: `data` is not a CDI document. The error contains all problems.
    """
    decoder = _Decoder()
    return decoder.decode(yaml_nodes.first_node(data))


def _is_unquoted(node: Node) -> bool:
    return isinstance(node, ScalarEvent) and not node.style


class _Decoder:
    """Decodes one document, collects its problems and counts the size of expanded aliases."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []
        self._removed_fields: list[Problem] = []
        self._nodes = 0
        self._bytes = 0
        self._merging: set[int] = set()

    def decode(self, node: Node) -> Spec:
        """Decode the document.

        Raises:
            CodecError: The node is not a CDI document.
        """
        try:
            decoded = self._object(node, Spec, "")
        except _WrongType as error:
            raise self._error() from error
        if decoded.version.removeprefix("v") == version.CURRENT:
            self._problems += self._removed_fields
        if self._problems:
            raise self._error()
        assert isinstance(decoded, Spec)
        return decoded

    def _object(self, node: Node, model: type, path: str) -> Any:
        by_key = _BY_KEY[model]
        values: dict[str, Any] = dict(_DEFAULTS[model])
        for key, item in self._pairs(node, path):
            field = by_key.get(key)
            if field is not None and field.type is STRING:
                text = self._plain_text(item)
                if text is not None:
                    values[field.attribute] = text
                    continue
            where = f"{path}.{key}" if path else key
            if field is None:
                self._add_problem(item, where, "unknown field", _suggestion(key, by_key))
                continue
            if until := field.last_version:
                message = f"unknown field: {until} was the last version that had it"
                remedy = f"lower cdiVersion to {until}"
                self._removed_fields.append(_problem(item, where, message, remedy))
            if not is_null(item):
                try:
                    values[field.attribute] = self._value(item, field.type, where)
                except _WrongType:
                    continue
        return model(**values)

    def _value(self, node: Node, kind: FieldType, path: str) -> Any:
        match kind:
            case String():
                return self._text(node, path)
            case Integer():
                return self._number(node, kind, path)
            case Boolean():
                return self._flag(node, path)
            case StringMap():
                return self._text_map(node, path)
            case ListOf():
                return self._items(node, kind.item_type, path)
            case Object():
                return self._object(node, kind.model, path)
            case _:
                assert_never(kind)

    def _text_map(self, node: Node, path: str) -> dict[str, str]:
        values: dict[str, str] = {}
        for key, item in self._pairs(node, path):
            try:
                values[key] = "" if is_null(item) else self._text(item, f"{path}.{key}")
            except _WrongType:
                continue
        return values

    def _items(self, node: Node, of: FieldType, path: str) -> tuple[Any, ...]:
        self._count(node, path)
        if not isinstance(node, SequenceNode):
            raise self._wrong_type(node, path, "must be a list", "put [ ] around it")
        values: list[Any] = []
        for index, item in enumerate(node.value):
            if of is STRING and (text := self._plain_text(item)) is not None:
                values.append(text)
                continue
            where = f"{path}[{index}]"
            if is_null(item):
                self._add_problem(item, where, "an entry of a list must not be null", "remove it")
                continue
            try:
                values.append(self._value(item, of, where))
            except _WrongType:
                continue
        return tuple(values)

    def _pairs(self, node: Node, path: str) -> list[tuple[str, Node]]:
        self._count(node, path)
        here = path or "the document"
        if not isinstance(node, MappingNode):
            raise self._wrong_type(node, here, "must be a mapping", "write name: value")
        pairs: dict[str, Node] = {}
        merged: Node | None = None
        for key_node, item in node.value:
            try:
                key = self._plain_text(key_node) or self._text(key_node, here)
            except _WrongType:
                continue
            if key in pairs or (key == "<<" and merged is not None):
                where = f"{path}.{key}" if path else key
                self._add_problem(key_node, where, "the field appears twice", "keep one of them")
            elif key == "<<" and is_merge_key(key_node):
                merged = item
            else:
                pairs[key] = item
        if merged is not None:
            pairs = {**self._merged(node, merged, path), **pairs}
        return list(pairs.items())

    def _merged(self, node: Node, merged: Node, path: str) -> dict[str, Node]:
        """The fields that `<<: *anchor` merges. If there are several mappings, the first wins."""
        if id(node) in self._merging:
            here = path or "the document"
            raise self._wrong_type(node, here, "the mapping is merged into itself", "remove <<")
        self._merging.add(id(node))
        mappings = merged.value if isinstance(merged, SequenceNode) else [merged]
        pairs: dict[str, Node] = {}
        for mapping in reversed(mappings):
            try:
                pairs.update(self._pairs(mapping, path))
            except _WrongType:
                continue
        self._merging.remove(id(node))
        return pairs

    def _plain_text(self, node: Node) -> str | None:
        """The text of an ASCII scalar that is no null, or None for the slower `_text` to judge.

        Nearly all values of a document are such scalars.
        """
        if type(node) is not ScalarEvent or node.tag is not None:
            return None
        text: str = node.value
        if not text.isascii() or (not node.style and text in NULLS):
            return None
        self._nodes += 1
        self._bytes += len(text)
        if self._nodes > MAX_NODES or self._bytes > MAX_BYTES:
            raise self._too_large(node, "")
        return text

    def _text(self, node: Node, path: str) -> str:
        self._count(node, path)
        if not isinstance(node, ScalarEvent) or node.tag not in _SCALAR_TAGS:
            raise self._wrong_type(node, path, "must be a string", "write one value")
        text: str = node.value
        if not is_unicode(text):  # PyYAML without libyaml lets them in
            raise self._wrong_type(
                node, path, f"{text!r} is not valid Unicode", "correct the escape in it"
            )
        self._bytes += len(text)
        return text

    def _number(self, node: Node, kind: Integer, path: str) -> int:
        text = self._text(node, path)
        match = _INTEGER.fullmatch(text) if _is_unquoted(node) else None
        if match is None:
            message = f"{text!r} is not an integer"
            raise self._wrong_type(node, path, message, "write digits without quotes")
        bases = {"hex": 16, "octal": 8, "decimal": 10}
        notation = next(name for name in bases if match[name] is not None)
        is_long = len(text) > _MAX_DIGITS
        value = (
            kind.highest + 1 if is_long else int(match["sign"] + match[notation], bases[notation])
        )
        if not kind.lowest <= value <= kind.highest:
            message = f"{text} is not in {kind.lowest}…{kind.highest}"
            raise self._wrong_type(node, path, message, "correct the number")
        return value

    def _flag(self, node: Node, path: str) -> bool:
        text = self._text(node, path)
        if not _is_unquoted(node) or text not in _TRUE | _FALSE:
            message = f"{text!r} is neither true nor false"
            raise self._wrong_type(node, path, message, "write one of them")
        return text in _TRUE

    def _count(self, node: Node, path: str) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES or self._bytes > MAX_BYTES:
            raise self._too_large(node, path)

    def _too_large(self, node: Node, path: str) -> CodecError:
        message = "the document is too large after its aliases are expanded"
        self._problems.append(_problem(node, path, message, yaml_nodes.SPLIT_REMEDY))
        return self._error()

    def _wrong_type(self, node: Node, path: str, message: str, remedy: str) -> _WrongType:
        self._add_problem(node, path, message, remedy)
        return _WrongType()

    def _add_problem(self, node: Node, path: str, message: str, remedy: str) -> None:
        self._problems.append(_problem(node, path, message, remedy))
        if len(self._problems) >= MAX_PROBLEMS:
            raise self._error()

    def _error(self) -> CodecError:
        return CodecError(tuple(sorted(self._problems, key=lambda problem: problem.line)))


def _suggestion(key: str, known: Iterable[str]) -> str:
    near = next((field for field in known if field.lower() == key.lower()), None)
    return f"did you mean {near}?" if near else f"the fields here are {', '.join(known)}"


def _problem(node: Node, path: str, message: str, remedy: str) -> Problem:
    return Problem(path, message, line=line_of(node), remedy=remedy)
