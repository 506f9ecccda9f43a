# SPDX-License-Identifier: Apache-2.0
"""The nodes of the file system: numbers that the kernel knows, and the paths they stand for."""

from __future__ import annotations

from dataclasses import dataclass

from nvdra_sim.sysfs_server.protocol import ROOT_NODE


@dataclass
class _Node:
    path: str
    key: tuple[str, int] | None
    lookups: int = 0


class NodeTable:
    """Paths by node number, until the kernel forgets them.

    A control has a new number at each lookup. The kernel locks a file while it is written, so a
    write that waits would keep others from the same file, which real sysfs does not do.
    """

    def __init__(self) -> None:
        self._nodes = {ROOT_NODE: _Node("", None)}
        self._numbers: dict[tuple[str, int], int] = {}
        self._next = ROOT_NODE + 1

    def path(self, number: int) -> str | None:
        """The path of a node, relative to the mount: empty, or with a leading slash."""
        found = self._nodes.get(number)
        return None if found is None else found.path

    def look_up(self, path: str, identity: int | None) -> int:
        """The number of a path, with one more lookup.

        Args:
            path: The path.
            identity: The inode of the plain file, so that another file at the same path is
                another node; None: always a new node.
        """
        key = None if identity is None else (path, identity)
        number = None if key is None else self._numbers.get(key)
        if number is None:
            number = self._next
            self._next += 1
            self._nodes[number] = _Node(path, key)
            if key is not None:
                self._numbers[key] = number
        self._nodes[number].lookups += 1
        return number

    def forget(self, number: int, lookups: int) -> None:
        """Takes back lookups; a node without any is gone."""
        found = self._nodes.get(number)
        if found is None or number == ROOT_NODE:
            return
        found.lookups -= lookups
        if found.lookups <= 0:
            del self._nodes[number]
            if found.key is not None:
                del self._numbers[found.key]
