# SPDX-License-Identifier: Apache-2.0
"""The cache of an informer: applies lists and watch lines, and decides when to list again.

Our own writes are visible at once, before the watch reports them, so that no object is created
twice (client-go's mutation cache). Source: docs/reference/resource-slices.md, "Reconciliation of a
pool"; docs/reference/api-server.md, "List and watch".
"""

import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from nvdra_api import json_text
from nvdra_api.meta import JsonObject

_TEXTS: Final = ("name", "namespace", "uid", "resourceVersion")


class WatchResult(enum.Enum):
    """The effect of one line of a watch."""

    CHANGED = "changed"
    UNCHANGED = "nothing"
    RELIST = "list again"


def keep_whole_object(obj: JsonObject) -> JsonObject:
    """A transform that keeps the whole object."""
    return obj


class InformerCache:
    """The objects of one collection by key (`<namespace>/<name>` or `<name>`)."""

    def __init__(
        self, transform: Callable[[JsonObject], JsonObject | None] = keep_whole_object
    ) -> None:
        """Create an empty cache.

        Args:
            transform: Returns the part of an object to keep: at least name, namespace, UID and
                resourceVersion; None if it cannot be read. Then what is known of it stays.
        """
        self._transform = transform
        self._changed_keys: set[str] = set()
        self._observed: dict[str, JsonObject] = {}
        self._written: dict[str, JsonObject] = {}
        self._deleted: set[str] = set()
        self.resource_version = ""
        """The resourceVersion at which the next watch starts; empty before the first list."""

    @property
    def is_listed(self) -> bool:
        """Whether there has been a list."""
        return bool(self.resource_version)

    def objects(self) -> Mapping[str, JsonObject]:
        """The objects, including our own writes."""
        merged = self._observed | self._written
        return {k: o for k, o in merged.items() if o["metadata"].get("uid") not in self._deleted}

    def get(self, key: str) -> JsonObject | None:
        """One object by its key, including our own writes."""
        obj = self._written.get(key) or self._observed.get(key)
        return None if obj is None or obj["metadata"].get("uid") in self._deleted else obj

    def take_changed_keys(self) -> frozenset[str]:
        """The keys of added, changed and deleted objects since the last call."""
        taken = frozenset(self._changed_keys)
        self._changed_keys.clear()
        return taken

    def kept(self, document: Mapping[str, Any]) -> dict[str, JsonObject]:
        """What the cache would keep of the objects in a list, by key.

        Raises:
            ValueError: It is no list of objects.
        """
        found = {object_key(each): self._part_of(each) for each in _items_with_kind(document)}
        return {key: part for key, part in found.items() if part is not None}

    def replace(
        self, document: Mapping[str, Any], earlier_pages: Mapping[str, JsonObject] | None = None
    ) -> bool:
        """Replace all objects by a list. Returns whether anything changed.

        Args:
            document: The list, or its last page.
            earlier_pages: What `kept` returned for the pages before.
        """
        before = self.objects()
        self._observed = {**(earlier_pages or {}), **self.kept(document)}
        self._deleted.clear()
        self._resume_from(document.get("metadata") or {})
        now = self.objects()
        self._changed_keys |= {
            name for name in {*before, *now} if before.get(name) != now.get(name)
        }
        return now != before

    def apply_watch_line(self, line: bytes) -> WatchResult:
        """Apply one line of a watch.

        A list is necessary after an ERROR event, such as 410 for a resourceVersion that is too old,
        and after any line that is not a valid event.
        """
        try:
            event = json_text.parse_objects(line, json_text.MAX_OBJECT_BYTES)
        except ValueError:
            return WatchResult.RELIST
        if not isinstance(event, dict):
            return WatchResult.RELIST
        kind, obj = event.get("type"), event.get("object") or {}
        if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
            return WatchResult.RELIST
        if not _is_object(obj, has_name=kind != "BOOKMARK"):
            return WatchResult.RELIST
        part = None if kind == "BOOKMARK" else self._part_of(obj)
        changed = part is not None and self._apply(kind, part)
        if changed:
            self._changed_keys.add(object_key(obj))
        self._resume_from(obj.get("metadata") or {})
        return WatchResult.CHANGED if changed else WatchResult.UNCHANGED

    def record_write(self, obj: JsonObject) -> None:
        """Apply the server's answer to our create or replace."""
        if not _is_newer(self.resource_version, obj["metadata"]["resourceVersion"], or_equal=True):
            part = self._part_of(obj)
            if part is not None:
                self._written[object_key(obj)] = part
                self._changed_keys.add(object_key(obj))

    def record_delete(self, obj: JsonObject) -> None:
        """Hide an object that we deleted until the watch reports it."""
        self._deleted.add(obj["metadata"].get("uid", ""))
        self._changed_keys.add(object_key(obj))

    def _part_of(self, obj: JsonObject) -> JsonObject | None:
        """The part to keep of an object; of one that cannot be read the known one, if any."""
        part = self._transform(obj)
        return self._observed.get(object_key(obj)) if part is None else part

    def _apply(self, kind: str, obj: JsonObject) -> bool:
        name = object_key(obj)
        before = self._observed.get(name)
        if kind == "DELETED":
            self._deleted.discard(obj["metadata"].get("uid"))
            return self._observed.pop(name, None) is not None or name in self._written
        self._observed[name] = obj
        return obj != before and obj != self._written.get(name)

    def _resume_from(self, metadata: Mapping[str, Any]) -> None:
        """Set the resourceVersion, and drop our own writes that the watch has reported."""
        version = metadata.get("resourceVersion")
        if not version:
            return
        self.resource_version = version
        self._written = {
            name: each
            for name, each in self._written.items()
            if not _is_newer(version, each["metadata"]["resourceVersion"], or_equal=True)
        }


def _items_with_kind(document: Mapping[str, Any]) -> Iterator[JsonObject]:
    """The objects of a list, with the kind that the server leaves out of those of built-in types.

    The objects of a watch have it, and nothing may depend on how an object became known.
    """
    kind = str(document.get("kind") or "").removesuffix("List")
    said = {"apiVersion": document.get("apiVersion"), "kind": kind} if kind else {}
    for each in document.get("items") or ():
        if not _is_object(each):
            raise ValueError("an item of the list is not an object with a name")
        yield {**said, **each}


def _is_object(value: Any, *, has_name: bool = True) -> bool:
    """Whether it has metadata of the types that every object has. A bookmark has no name."""
    metadata = value.get("metadata") if isinstance(value, dict) else None
    if not isinstance(metadata, dict) or (has_name and "name" not in metadata):
        return False
    return all(isinstance(metadata.get(name, ""), str) for name in _TEXTS)


def object_key(obj: JsonObject) -> str:
    """`<namespace>/<name>`, or the name of a cluster-scoped object."""
    metadata = obj["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def _is_newer(version: str, than: str, *, or_equal: bool = False) -> bool:
    """Compare resourceVersions of one collection. If they are not numbers, only for equality."""
    if version.isdecimal() and than.isdecimal():
        # As texts: numbers of thousands of digits take quadratic time.
        left, right = ((len(each), each) for each in (version.lstrip("0"), than.lstrip("0")))
        return left > right or (or_equal and left == right)
    return or_equal and version == than
