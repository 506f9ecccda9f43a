"""The bytes of a CDI document as a tree of YAML nodes, each with its line, within limits.

JSON is YAML, so there is one way in. Both of PyYAML's composers recurse, so size and depth are
looked at first. What the nodes mean is `decoding`'s to say.
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
"""The longest document, in bytes; also what its aliases may unfold to, in characters."""

MAX_NODES = 100_000
"""The most values of a document, with and without aliases."""

SPLIT = "split it into several specs"
"""What to do about a document over a limit."""

_MAX_DEPTH = 32  # a document of the standard has 8
_NO_SPEC = "no spec nests like that: is this the right file?"
_NULL = "tag:yaml.org,2002:null"

# libyaml where PyYAML was built with it: thirty times faster, and it takes JSON indented with tabs.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def first_node(data: bytes) -> Node:
    """The first document of `data`.

    Raises:
        CodecError: It is empty, malformed or too large.
    """
    if len(data) > MAX_BYTES:
        message = f"over the limit of {MAX_BYTES} bytes"
        raise _refusal(message, 0, SPLIT)
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
    if node is None or is_null(node):
        raise _refusal("the document is empty", 0, "write a spec into it, or remove the file")
    return node


def lines(data: bytes) -> dict[str, int]:
    """The line, from 1, of everything in a document that decodes, by its path.

    A path is written as in `Problem.path`; the document itself is the empty path.
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


def second_document(data: bytes) -> int | None:
    """The line on which a second document begins, after a first one that decodes."""
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
    """Whether nothing is written there, or an unquoted null."""
    return isinstance(node, ScalarNode) and node.tag == _NULL and not node.style


def line_of(at: Node | Event) -> int:
    """The line on which it begins, from 1; 0 where nobody knows."""
    return at.start_mark.line + 1 if at.start_mark is not None else 0


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
            raise _refusal(f"more than {_MAX_DEPTH} levels deep", line_of(event), _NO_SPEC)
        if nodes > MAX_NODES:
            raise _refusal(f"more than {MAX_NODES} values", line_of(event), SPLIT)


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
    return _refusal(f"no YAML or JSON: {what}", line, "correct the text there, in UTF-8")


def _refusal(message: str, line: int, remedy: str) -> CodecError:
    return CodecError((Problem("", message, line=line, remedy=remedy),))
