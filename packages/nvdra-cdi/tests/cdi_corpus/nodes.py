# SPDX-License-Identifier: Apache-2.0
"""A document as YAML's own nodes: what was written, before anybody gives it a meaning."""

from collections.abc import Iterator

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode


def scalars(
    node: Node | None, key: str = "", entered: frozenset[int] = frozenset()
) -> Iterator[tuple[str, ScalarNode]]:
    """Every scalar with the name of the field it is in; what contains itself is entered once."""
    if isinstance(node, ScalarNode):
        yield key, node
    elif node is not None and id(node) not in entered:
        inside = entered | {id(node)}
        for name, item in _items(node, key):
            yield from scalars(item, name, inside)


def _items(node: Node, key: str) -> Iterator[tuple[str, Node]]:
    if isinstance(node, SequenceNode):
        yield from ((key, item) for item in node.value)
    elif isinstance(node, MappingNode):
        yield from ((str(name.value), item) for name, item in node.value)


def collections(
    node: Node | None, entered: frozenset[int] = frozenset()
) -> Iterator[SequenceNode | MappingNode]:
    """Every list and mapping, outer ones first; what contains itself is entered once."""
    if isinstance(node, SequenceNode | MappingNode) and id(node) not in entered:
        yield node
        for _, item in _items(node, ""):
            yield from collections(item, entered | {id(node)})


def has_null_entry(root: Node | None) -> bool:
    """Whether a list has a null entry."""
    lists = (each for each in collections(root) if isinstance(each, SequenceNode))
    return any(is_null(entry) for each in lists for entry in each.value)


def has_null_key(root: Node | None) -> bool:
    """Whether the name of a field is null."""
    mappings = (each for each in collections(root) if isinstance(each, MappingNode))
    return any(is_null(key) for each in mappings for key, _ in each.value)


def is_null(node: Node) -> bool:
    """Whether it is null, however that is written."""
    return isinstance(node, ScalarNode) and node.tag.endswith(":null")


def devices(root: Node | None) -> list[Node]:
    """The document's devices."""
    found = [item for name, item in _items(root, "") if name == "devices"] if root else []
    return list(found[0].value) if found and isinstance(found[0], SequenceNode) else []


def root_of(document: bytes) -> Node | None:
    """The first document in the bytes as nodes, or None where that is not possible."""
    loader = yaml.CSafeLoader(document)
    try:
        return loader.get_node() if loader.check_node() else None
    except (yaml.YAMLError, UnicodeDecodeError):
        return None
    finally:
        loader.dispose()
