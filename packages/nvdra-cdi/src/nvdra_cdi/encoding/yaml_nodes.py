"""Parse the bytes of a CDI document into YAML nodes with line numbers, within size limits.

JSON is valid YAML, so one parser reads both. Both composers of PyYAML are recursive, so size and
depth are checked first. The module `decoder` interprets the nodes.
"""

from typing import Any

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

from nvdra_cdi.errors import CodecError, Problem

MAX_BYTES = 4 << 20
"""The maximum size of a document in bytes, and of its expanded aliases in characters."""

MAX_NODES = 100_000
"""The maximum number of values in a document, before and after aliases are expanded."""

SPLIT_REMEDY = "split it into several specs"
"""The remedy for a document that exceeds a limit."""


def too_long_message() -> str:
    """The message for a document of more than `MAX_BYTES`."""
    return f"the document exceeds {MAX_BYTES} bytes"


def too_many_message() -> str:
    """The message for a document of more than `MAX_NODES` values."""
    return f"more than {MAX_NODES} values"


_MAX_DEPTH = 32  # a CDI spec has at most 8 levels
_TOO_DEEP_REMEDY = "check that this is the right file: no spec has that many levels"
_NULL = "tag:yaml.org,2002:null"

# Use libyaml if PyYAML was built with it: it is 30 times faster, and reads JSON with tabs.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def first_node(data: bytes) -> Node:
    """The root node of the first document in `data`.

    Raises:
        CodecError: The document is empty, malformed or too large.
    """
    if len(data) > MAX_BYTES:
        raise _error(too_long_message(), 0, SPLIT_REMEDY)
    loader = None
    try:
        _check_size(data)
        loader = _Loader(data)
        node: Node | None = loader.get_node() if loader.check_node() else None
    except (yaml.YAMLError, ValueError) as error:
        raise _syntax_error(data, error) from error
    finally:
        if loader is not None:
            loader.dispose()
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
    return isinstance(node, ScalarNode) and node.tag == _NULL and not node.style


def line_of(at: Node | Event) -> int:
    """The line on which the node or event begins, counted from 1, or 0 if it is unknown."""
    return at.start_mark.line + 1 if at.start_mark is not None else 0


def _check_size(data: bytes) -> None:
    """Check depth and size. libyaml's composer recurses in C: deep nesting would crash it."""
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
            raise _error(f"more than {_MAX_DEPTH} levels deep", line_of(event), _TOO_DEEP_REMEDY)
        if nodes > MAX_NODES:
            raise _error(too_many_message(), line_of(event), SPLIT_REMEDY)


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
