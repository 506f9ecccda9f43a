"""List and watch: what the answers mean, where to resume, when only a new list helps.

Feed it a list, then the lines of watches; take the objects. What we wrote ourselves counts at once,
before the watch has caught up, so that nothing is created twice.
Source: spec/kubelet-dra-protocol.md §3.8 (mutation cache), §8.8.
"""

import enum
import json
from collections.abc import Callable, Mapping
from typing import Any

from nvdra_api.protocol.apiversions import JsonObject


class Outcome(enum.Enum):
    """What a line of a watch did."""

    CHANGED = "changed"
    NOTHING = "nothing"
    LIST_AGAIN = "list again"


def whole(obj: JsonObject) -> JsonObject:
    """The object as it is: for who keeps everything."""
    return obj


class Collection:
    """The objects of one collection by key (`<namespace>/<name>`, or the bare name)."""

    def __init__(self, trim: Callable[[JsonObject], JsonObject] = whole) -> None:
        """Start with nothing.

        Args:
            trim: What to keep of an object; at least name, namespace, UID and resourceVersion.
        """
        self._trim = trim
        self._touched: set[str] = set()
        self._known: dict[str, JsonObject] = {}
        self._written: dict[str, JsonObject] = {}
        self._deleted: set[str] = set()
        self.resource_version = ""
        """Where the next watch starts; empty before the first list."""

    @property
    def is_listed(self) -> bool:
        """Has there been a list at all?"""
        return bool(self.resource_version)

    def objects(self) -> Mapping[str, JsonObject]:
        """The collection as far as we know, our own writes included."""
        merged = self._known | self._written
        return {k: o for k, o in merged.items() if o["metadata"].get("uid") not in self._deleted}

    def get(self, name: str) -> JsonObject | None:
        """One object by its key, as `objects` has it."""
        obj = self._written.get(name) or self._known.get(name)
        return None if obj is None or obj["metadata"].get("uid") in self._deleted else obj

    def touched(self) -> frozenset[str]:
        """Keys of what came, changed or went since the last time this was asked."""
        taken = frozenset(self._touched)
        self._touched.clear()
        return taken

    def listed(self, document: Mapping[str, Any]) -> bool:
        """Take a whole list, which replaces everything; did anything change?"""
        before = self.objects()
        self._known = {key(each): self._trim(each) for each in document.get("items") or ()}
        self._deleted.clear()
        self._resume_from(document.get("metadata") or {})
        now = self.objects()
        self._touched |= {name for name in {*before, *now} if before.get(name) != now.get(name)}
        return now != before

    def fed(self, line: bytes) -> Outcome:
        """Take one line of a watch.

        An ERROR event ends the watch: 410 means that the resourceVersion is gone, anything else,
        what is no JSON among it, that the stream cannot be trusted; a list mends both.
        """
        try:
            event = json.loads(line)
        except ValueError:
            return Outcome.LIST_AGAIN
        kind, obj = event.get("type"), event.get("object") or {}
        if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
            return Outcome.LIST_AGAIN
        changed = self._apply(kind, self._trim(obj)) if kind != "BOOKMARK" else False
        if changed:
            self._touched.add(key(obj))
        self._resume_from(obj.get("metadata") or {})
        return Outcome.CHANGED if changed else Outcome.NOTHING

    def wrote(self, obj: JsonObject) -> None:
        """Remember what the server returned for our create or replace."""
        if not _is_newer(self.resource_version, obj["metadata"]["resourceVersion"], or_equal=True):
            self._written[key(obj)] = self._trim(obj)
            self._touched.add(key(obj))

    def deleted(self, obj: JsonObject) -> None:
        """Remember that we deleted this object, whatever the watch still says."""
        self._deleted.add(obj["metadata"].get("uid", ""))
        self._touched.add(key(obj))

    def _apply(self, kind: str, obj: JsonObject) -> bool:
        name = key(obj)
        before = self._known.get(name)
        if kind == "DELETED":
            self._deleted.discard(obj["metadata"].get("uid"))
            return self._known.pop(name, None) is not None or name in self._written
        self._known[name] = obj
        return obj != before and obj != self._written.get(name)

    def _resume_from(self, metadata: Mapping[str, Any]) -> None:
        """Move on, and let go of what the watch has caught up with."""
        version = metadata.get("resourceVersion")
        if not version:
            return
        self.resource_version = version
        self._written = {
            name: each
            for name, each in self._written.items()
            if not _is_newer(version, each["metadata"]["resourceVersion"], or_equal=True)
        }


def key(obj: JsonObject) -> str:
    """`<namespace>/<name>`, or the name of a cluster-scoped object."""
    metadata = obj["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def _is_newer(version: str, than: str, *, or_equal: bool = False) -> bool:
    """Compare resourceVersions of one collection; where they are not numbers, only for equality."""
    if version.isdecimal() and than.isdecimal():
        return int(version) > int(than) or (or_equal and int(version) == int(than))
    return or_equal and version == than
