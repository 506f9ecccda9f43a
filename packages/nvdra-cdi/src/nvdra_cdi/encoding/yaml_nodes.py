# SPDX-License-Identifier: Apache-2.0
"""Parse the bytes of a CDI document into YAML nodes with line numbers, within size limits.

JSON is valid YAML, so one parser reads both. The nodes are made from the parser's events, because
both composers of PyYAML are recursive and resolve the type of each scalar, which takes twice as
long. The module `decoder` interprets the nodes.
"""

from typing import Any, TypeAlias

import yaml
from yaml.composer import ComposerError
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    ScalarEvent,
    SequenceStartEvent,
)
from yaml.nodes import MappingNode, SequenceNode
from yaml.reader import ReaderError

from nvdra_cdi.errors import CodecError, Problem

MAX_BYTES = 4 << 20
"""The maximum size of a document in bytes, and of its expanded aliases in characters."""

MAX_NODES = 100_000
"""The maximum number of values in a document, before and after aliases are expanded."""

NULLS = frozenset(("", "~", "null", "Null", "NULL"))
"""The unquoted scalars that are null."""

SPLIT_REMEDY = "split it into several specs"
"""The remedy for a document that exceeds a limit."""


def too_long_message() -> str:
    """The message for a document of more than `MAX_BYTES`."""
    return f"the document exceeds {MAX_BYTES} bytes"


def too_many_message() -> str:
    """The message for a document of more than `MAX_NODES` values."""
    return f"more than {MAX_NODES} values"


_MAX_DEPTH = 32  # a CDI spec has at most 8 levels

Node: TypeAlias = ScalarEvent | SequenceNode | MappingNode
"""A value. The tag of a scalar is None if it is not written."""

_TOO_DEEP_REMEDY = "check that this is the right file: no spec has that many levels"
_NULL_TAG = "tag:yaml.org,2002:null"
_MERGE_TAG = "tag:yaml.org,2002:merge"
_NO_TAGS = (None, "!")

# Use libyaml if PyYAML was built with it: it is 30 times faster, and reads JSON with tabs.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def first_node(data: bytes) -> Node:
    """The root node of the first document in `data`.

    Raises:
        CodecError: The document is empty, malformed or too large.
    """
    if len(data) > MAX_BYTES:
        raise _error(too_long_message(), 0, SPLIT_REMEDY)
    try:
        node = _compose(_Loader(data))
    except (yaml.YAMLError, ValueError) as error:
        raise _syntax_error(data, error) from error
    if node is None or is_null(node):
        raise _error("the document is empty", 0, "write a spec into it, or remove the file")
    return node


def line_numbers(data: bytes) -> dict[str, int]:
    """The line number, counted from 1, of each value in a decodable document, by path.

    Paths have the form of `Problem.path`. The empty path is the document itself.
    """
    found: dict[str, int] = {}
    rest = [("", first_node(data))]
    while rest:
        path, node = rest.pop()
        found.setdefault(path, line_of(node))
        if isinstance(node, MappingNode):
            prefix = f"{path}." if path else ""
            rest.extend((f"{prefix}{key.value}", item) for key, item in node.value)
        elif isinstance(node, SequenceNode):
            rest.extend((f"{path}[{index}]", item) for index, item in enumerate(node.value))
    return found


def second_document_line(data: bytes) -> int | None:
    """The line on which a second document begins, or None. The first one must be decodable."""
    try:
        starts = (
            line_of(event)
            for event in yaml.parse(data, Loader=_Loader)
            if isinstance(event, DocumentStartEvent)
        )
        next(starts)
        return next(starts, None)
    except (yaml.YAMLError, ValueError) as error:
        return _syntax_error(data, error).problems[0].line


def is_null(node: Node) -> bool:
    """Whether the value is missing or an unquoted null."""
    if not isinstance(node, ScalarEvent) or node.style:
        return False
    return node.tag == _NULL_TAG or (node.value in NULLS and node.tag in _NO_TAGS)


def is_merge_key(key: ScalarEvent) -> bool:
    """Whether the key is `<<`, which merges mappings into the one that contains it."""
    return key.tag == _MERGE_TAG or (key.value == "<<" and not key.style and key.tag in _NO_TAGS)


def line_of(at: Node | Event) -> int:
    """The line on which the node or event begins, counted from 1, or 0 if it is unknown."""
    return at.start_mark.line + 1 if at.start_mark is not None else 0


def _compose(loader: Any) -> Node | None:
    """The root node of the first document, or None if there is none.

    A collection is composed on a stack of its own, and not by recursion: nesting may be hostile.
    """
    root: list[Node] = []
    here, outside = root, list[list[Node]]()
    anchors: dict[str, Node] = {}
    nodes = 0
    while (event := loader.get_event()) is not None:
        kind = type(event)
        if kind is ScalarEvent:
            here.append(event)
            if event.anchor is not None:
                anchors[event.anchor] = event
        elif kind is MappingStartEvent or kind is SequenceStartEvent:
            of = MappingNode if kind is MappingStartEvent else SequenceNode
            node = of(event.tag, [], event.start_mark, None)
            here.append(node)
            if event.anchor is not None:
                anchors[event.anchor] = node
            outside.append(here)
            here = node.value
            if len(outside) > _MAX_DEPTH:
                message = f"more than {_MAX_DEPTH} levels deep"
                raise _error(message, line_of(event), _TOO_DEEP_REMEDY)
        elif kind is AliasEvent:
            here.append(_anchored(event, anchors))
        elif kind is DocumentEndEvent:
            break
        else:
            if isinstance(event, CollectionEndEvent):
                here = outside.pop()
                _complete(here[-1])
            continue
        nodes += 1
        if nodes > MAX_NODES:
            raise _error(too_many_message(), line_of(event), SPLIT_REMEDY)
    return root[0] if root else None


def _anchored(alias: AliasEvent, anchors: dict[str, Node]) -> Node:
    if alias.anchor not in anchors:
        mark: Any = alias.start_mark  # of libyaml's own class
        raise ComposerError(None, None, f"found undefined alias {alias.anchor!r}", mark)
    return anchors[alias.anchor]


def _complete(node: Node) -> None:
    """Pair keys and values, which the parser reports in turn."""
    if isinstance(node, MappingNode):
        parts = iter(node.value)
        node.value = list(zip(parts, parts, strict=True))


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
    return _error(f"not valid YAML or JSON: {what}", line, "correct the text; use UTF-8")


def _error(message: str, line: int, remedy: str) -> CodecError:
    return CodecError((Problem("", message, line=line, remedy=remedy),))
