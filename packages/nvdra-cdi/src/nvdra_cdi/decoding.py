"""A YAML node tree to a `Spec`, strictly and by the type of each field (spec/cdi.md §5).

Works below YAML's own typing, on the source text of scalars, because a CDI name may look like a
number and Go's decoders read it as a name. Aliases are followed; how much they may blow up is
limited.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, assert_never

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    ScalarEvent,
)
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.reader import ReaderError

from nvdra_cdi import version
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

MAX_BYTES = 4 << 20
"""The longest document, in bytes; also what its aliases may unfold to, in characters."""

_MAX_NODES = 100_000  # with and without aliases
_MAX_DEPTH = 32  # a document of the standard has 8
_SPLIT = "split it into several specs"
_NO_SPEC = "no spec nests like that: is this the right file?"
_MAX_DIGITS = 64  # no number of the standard needs more than 20
_NULL = "tag:yaml.org,2002:null"
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

# libyaml where PyYAML was built with it: thirty times faster, and it takes JSON indented with tabs.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def spec(data: bytes) -> Spec:
    """The first document of `data`; missing fields are left for validation.

    Raises:
        CodecError: It is no CDI document.
    """
    decoder = _Decoder()
    decoded = decoder.object(_first_node(data), Spec, "")
    assert isinstance(decoded, Spec)
    if decoder.ended and decoded.version.removeprefix("v") == version.CURRENT:
        raise decoder.ended[0]
    return decoded


def lines(data: bytes) -> dict[str, int]:
    """The line, from 1, of everything in a document that `spec` accepts, by its path.

    A path is written as in `Problem.path`; the document itself is the empty path.
    """
    found: dict[str, int] = {}
    rest = [("", _first_node(data))]
    while rest:
        path, node = rest.pop()
        found.setdefault(path, _line(node))
        if isinstance(node, MappingNode):
            prefix = f"{path}." if path else ""
            rest.extend((f"{prefix}{key.value}", item) for key, item in node.value)
        elif isinstance(node, SequenceNode):
            rest.extend((f"{path}[{index}]", item) for index, item in enumerate(node.value))
    return found


def second_document(data: bytes) -> int | None:
    """The line on which a second document begins, after a first one that `spec` accepts."""
    try:
        starts = (
            _line(event)
            for event in yaml.parse(data, Loader=_Loader)
            if isinstance(event, DocumentStartEvent)
        )
        next(starts)
        return next(starts, None)
    except (yaml.YAMLError, ValueError) as error:
        return _syntax_error(data, error).problems[0].line


def _first_node(data: bytes) -> Node:
    if len(data) > MAX_BYTES:
        message = f"over the limit of {MAX_BYTES} bytes"
        raise _refusal("", message, 0, _SPLIT)
    loader = None
    try:
        _refuse_size(data)
        loader = _Loader(data)
        node: Node | None = loader.get_node() if loader.check_node() else None
    except (yaml.YAMLError, ValueError) as error:
        raise _syntax_error(data, error) from error
    finally:
        if loader is not None:
            loader.dispose()
    if node is None or _is_null(node):
        raise _refusal("", "the document is empty", 0, "write a spec into it, or remove the file")
    return node


def _refuse_size(data: bytes) -> None:
    """Both composers recurse, libyaml's in C, where too much of it ends the process."""
    depth = nodes = 0
    for event in yaml.parse(data, Loader=_Loader):
        if isinstance(event, CollectionStartEvent):
            depth += 1
        elif isinstance(event, CollectionEndEvent):
            depth -= 1
        elif isinstance(event, DocumentEndEvent):
            return
        nodes += isinstance(event, CollectionStartEvent | ScalarEvent | AliasEvent)
        if depth > _MAX_DEPTH:
            raise _refusal("", f"more than {_MAX_DEPTH} levels deep", _line(event), _NO_SPEC)
        if nodes > _MAX_NODES:
            raise _refusal("", f"more than {_MAX_NODES} values", _line(event), _SPLIT)


def _syntax_error(data: bytes, error: yaml.YAMLError | ValueError) -> CodecError:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line = min(mark.line + 1, len(data.splitlines())) if mark is not None else 0
        what = ", ".join(filter(None, (error.problem, error.context)))
    elif isinstance(error, ReaderError):
        line = data.count(b"\n", 0, error.position) + 1
        what = f"{error.reason} at byte {error.position}"
    else:
        line, what = 0, str(error)
    return _refusal("", f"no YAML or JSON: {what}", line, "correct the text there, in UTF-8")


def _refusal(path: str, message: str, line: int, remedy: str) -> CodecError:
    return CodecError((Problem(path, message, line=line, remedy=remedy),))


def _is_null(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.tag == _NULL and not node.style


def _is_unquoted(node: Node) -> bool:
    return isinstance(node, ScalarNode) and not node.style


class _Decoder:
    """One pass over one document; counts what aliases unfold to.

    Attributes:
        ended: What to raise if the document has the current version, which lacks these fields.
    """

    def __init__(self) -> None:
        self.ended: list[CodecError] = []
        self._nodes = 0
        self._bytes = 0
        self._merging: set[int] = set()

    def object(self, node: Node, model: type, path: str) -> Any:
        by_key = {field.key: field for field in FIELDS[model]}
        values: dict[str, Any] = dict(_REQUIRED[model])
        for key, item in self._pairs(node, path):
            where = f"{path}.{key}" if path else key
            if key not in by_key:
                raise _error(item, where, "unknown field", _meant(key, by_key))
            if until := by_key[key].until:
                message = f"unknown field: {until} was the last version to have it"
                self.ended.append(_error(item, where, message, f"lower cdiVersion to {until}"))
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
            raise _error(node, path, "must be a list", "put [ ] around it")
        values: list[Any] = []
        for index, item in enumerate(node.value):
            where = f"{path}[{index}]"
            if _is_null(item):
                raise _error(item, where, "an entry of a list must not be null", "remove it")
            values.append(self._value(item, of, where))
        return tuple(values)

    def _pairs(self, node: Node, path: str) -> list[tuple[str, Node]]:
        self._count(node, path)
        if not isinstance(node, MappingNode):
            raise _error(node, path or "the document", "must be a mapping", "write name: value")
        pairs: dict[str, Node] = {}
        merged: Node | None = None
        for key_node, item in node.value:
            key = self._text(key_node, path or "the document")
            if key in pairs or (key == "<<" and merged is not None):
                where = f"{path}.{key}" if path else key
                raise _error(key_node, where, "the field is there twice", "keep one of them")
            if key_node.tag == _MERGE:
                merged = item
            else:
                pairs[key] = item
        if merged is not None:
            pairs = {**self._merged(node, merged, path), **pairs}
        return list(pairs.items())

    def _merged(self, node: Node, merged: Node, path: str) -> dict[str, Node]:
        """What `<<: *anchor` brings; of several mappings an earlier one wins."""
        if id(node) in self._merging:
            raise _error(
                node, path or "the document", "the mapping is merged into itself", "remove <<"
            )
        self._merging.add(id(node))
        mappings = merged.value if isinstance(merged, SequenceNode) else [merged]
        pairs: dict[str, Node] = {}
        for mapping in reversed(mappings):
            pairs.update(self._pairs(mapping, path))
        self._merging.remove(id(node))
        return pairs

    def _text(self, node: Node, path: str) -> str:
        self._count(node, path)
        if not isinstance(node, ScalarNode) or node.tag not in _PLAIN_TAGS:
            raise _error(node, path, "must be a string", "write one value")
        text: str = node.value
        if not text.isascii() and _SURROGATE.search(text):  # PyYAML without libyaml lets them in
            raise _error(node, path, f"{text!r} is no Unicode text", "correct the escape in it")
        self._bytes += len(text)
        return text

    def _number(self, node: Node, kind: Number, path: str) -> int:
        text = self._text(node, path)
        match = _INTEGER.fullmatch(text) if _is_unquoted(node) else None
        if match is None:
            raise _error(node, path, f"{text!r} is no whole number", "write digits without quotes")
        bases = {"hex": 16, "octal": 8, "decimal": 10}
        notation = next(name for name in bases if match[name] is not None)
        is_long = len(text) > _MAX_DIGITS
        value = (
            kind.highest + 1 if is_long else int(match["sign"] + match[notation], bases[notation])
        )
        if not kind.lowest <= value <= kind.highest:
            message = f"{text} is not in {kind.lowest}…{kind.highest}"
            raise _error(node, path, message, "correct the number")
        return value

    def _flag(self, node: Node, path: str) -> bool:
        text = self._text(node, path)
        if not _is_unquoted(node) or text not in _TRUE | _FALSE:
            raise _error(node, path, f"{text!r} is neither true nor false", "write one of them")
        return text in _TRUE

    def _count(self, node: Node, path: str) -> None:
        self._nodes += 1
        if self._nodes > _MAX_NODES or self._bytes > MAX_BYTES:
            raise _error(node, path, "the document unfolds to more than is allowed", _SPLIT)


def _meant(key: str, known: Iterable[str]) -> str:
    near = next((field for field in known if field.lower() == key.lower()), None)
    return f"{near} was meant?" if near else f"the fields here are {', '.join(known)}"


def _error(node: Node, path: str, message: str, remedy: str) -> CodecError:
    return _refusal(path, message, _line(node), remedy)


def _line(at: Node | Event) -> int:
    return at.start_mark.line + 1 if at.start_mark is not None else 0
