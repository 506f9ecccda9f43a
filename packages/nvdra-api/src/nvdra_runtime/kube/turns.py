# SPDX-License-Identifier: Apache-2.0
"""Who is next, when groups that have many items wait beside groups that have few. Pure."""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Items that wait, by group. The groups take turns; within a group the first one is next.

    An item waits for as many others as there are groups for each item of its own group before it,
    however many items another group has.
    """

    def __init__(self) -> None:
        self._groups: dict[str, deque[T]] = {}  # the group whose turn is next comes first

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def add(self, group: str, item: T) -> None:
        """Let an item wait. A group that had none waits for all others first."""
        self._groups.setdefault(group, deque()).append(item)

    def take(self) -> T:
        """Take the next item.

        Raises:
            LookupError: None waits.
        """
        if not self._groups:
            raise LookupError("nothing waits")
        group = next(iter(self._groups))
        items = self._groups.pop(group)
        taken = items.popleft()
        if items:
            self._groups[group] = items
        return taken

    def remove(self, group: str, item: T) -> None:
        """Let an item wait no longer, if it does."""
        items = self._groups.get(group)
        if items is not None and item in items:
            items.remove(item)
            if not items:
                del self._groups[group]
