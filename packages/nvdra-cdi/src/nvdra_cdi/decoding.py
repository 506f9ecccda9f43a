"""A YAML node tree to a `Spec`, strictly and by the type of each field (spec/cdi.md §5).

Works below YAML's own typing, on the source text of scalars, because a CDI name may look like a
number and Go's decoders read it as a name. Aliases are followed; how much they may blow up is
limited.
"""

import re
from collections.abc import Mapping
from typing import Any, assert_never

import yaml
from yaml.events import CollectionEndEvent, CollectionStartEvent, DocumentEndEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from nvdra_cdi.errors import CodecError
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

_MAX_BYTES = 4 << 20  # both of the file and of what its aliases unfold to
_MAX_NODES = 100_000
_MAX_DEPTH = 32  # a document of the standard has 8
_NULL = "tag:yaml.org,2002:null"
_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "timestamp", "merge", "value")
)
_INTEGER = re.compile(
    r"(?P<sign>[-+]?)(?:0[xX](?P<hex>[0-9a-fA-F]+)|0[oO]?(?P<octal>[0-7]+)|(?P<decimal>0|[1-9][0-9]*))",
    re.ASCII,
)
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

# libyaml where PyYAML was built with it: thirty times faster, and it takes JSON indented with tabs.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def spec(data: bytes) -> Spec:
    """The first document of `data`; missing fields are left for validation.

    Raises:
        CodecError: It is no CDI document.
    """
    if len(data) > _MAX_BYTES:
        raise CodecError(f"{len(data)} bytes are over the limit of {_MAX_BYTES}")
    node = _first_node(data)
    if node is None or _is_null(node):
        raise CodecError("the document is empty")
    decoded = _Decoder().object(node, Spec, "")
    assert isinstance(decoded, Spec)
    return decoded


def _first_node(data: bytes) -> Node | None:
    loader = None
    try:
        _refuse_depth(data)
        loader = _Loader(data)
        node: Node | None = loader.get_node() if loader.check_node() else None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CodecError(f"no YAML or JSON: {error}") from error
    finally:
        if loader is not None:
            loader.dispose()
    return node


def _refuse_depth(data: bytes) -> None:
    """Both composers recurse, libyaml's in C, where too much of it ends the process."""
    depth = 0
    for event in yaml.parse(data, Loader=_Loader):
        if isinstance(event, CollectionStartEvent):
            depth += 1
        elif isinstance(event, CollectionEndEvent):
            depth -= 1
        elif isinstance(event, DocumentEndEvent):
            return
        if depth > _MAX_DEPTH:
            raise CodecError(f"more than {_MAX_DEPTH} levels deep")


def _is_null(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.tag == _NULL and not node.style


def _is_unquoted(node: Node) -> bool:
    return isinstance(node, ScalarNode) and not node.style


class _Decoder:
    """One pass over one document; counts what aliases unfold to."""

    def __init__(self) -> None:
        self._nodes = 0
        self._bytes = 0

    def object(self, node: Node, model: type, path: str) -> Any:
        by_key = {field.key: field for field in FIELDS[model]}
        values: dict[str, Any] = dict(_REQUIRED[model])
        for key, item in self._pairs(node, path):
            where = f"{path}.{key}" if path else key
            if key not in by_key:
                raise _error(item, where, "unknown field")
            if not _is_null(item):
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
                return {
                    key: "" if _is_null(item) else self._text(item, f"{path}.{key}")
                    for key, item in self._pairs(node, path)
                }
            case Items():
                return self._items(node, kind.of, path)
            case Object():
                return self.object(node, kind.model, path)
            case _:
                assert_never(kind)

    def _items(self, node: Node, of: Kind, path: str) -> tuple[Any, ...]:
        self._count(node, path)
        if not isinstance(node, SequenceNode):
            raise _error(node, path, "must be a list")
        values: list[Any] = []
        for index, item in enumerate(node.value):
            where = f"{path}[{index}]"
            if _is_null(item):
                raise _error(item, where, "an entry of a list must not be null")
            values.append(self._value(item, of, where))
        return tuple(values)

    def _pairs(self, node: Node, path: str) -> list[tuple[str, Node]]:
        self._count(node, path)
        if not isinstance(node, MappingNode):
            raise _error(node, path or "the document", "must be a mapping")
        pairs: dict[str, Node] = {}
        for key_node, item in node.value:
            key = self._text(key_node, path or "the document")
            if key in pairs:
                raise _error(key_node, f"{path}.{key}" if path else key, "the field is there twice")
            pairs[key] = item
        return list(pairs.items())

    def _text(self, node: Node, path: str) -> str:
        self._count(node, path)
        if not isinstance(node, ScalarNode) or node.tag not in _PLAIN_TAGS:
            raise _error(node, path, "must be a string")
        text: str = node.value
        self._bytes += len(text)
        return text

    def _number(self, node: Node, kind: Number, path: str) -> int:
        text = self._text(node, path)
        match = _INTEGER.fullmatch(text) if _is_unquoted(node) else None
        if match is None:
            raise _error(node, path, f"{text!r} is no whole number")
        bases = {"hex": 16, "octal": 8, "decimal": 10}
        notation = next(name for name in bases if match[name] is not None)
        value = int(match["sign"] + match[notation], bases[notation])
        if not kind.lowest <= value <= kind.highest:
            raise _error(node, path, f"{text} is not in {kind.lowest}…{kind.highest}")
        return value

    def _flag(self, node: Node, path: str) -> bool:
        text = self._text(node, path)
        if not _is_unquoted(node) or text not in _TRUE | _FALSE:
            raise _error(node, path, f"{text!r} is neither true nor false")
        return text in _TRUE

    def _count(self, node: Node, path: str) -> None:
        self._nodes += 1
        if self._nodes > _MAX_NODES or self._bytes > _MAX_BYTES:
            raise _error(node, path, "the document unfolds to more than is allowed")


def _error(node: Node, path: str, message: str) -> CodecError:
    line = node.start_mark.line + 1 if node.start_mark is not None else 0
    return CodecError(f"{path}: {message} (line {line})")
