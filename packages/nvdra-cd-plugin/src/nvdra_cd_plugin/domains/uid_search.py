# SPDX-License-Identifier: Apache-2.0
"""Finds the names of ComputeDomains by their UIDs, by which no selector selects.

Any user may write UIDs into claims, and annotations of 250 KiB into domains. So only metadata is
received, a page of a few MiB at a time, and one list answers for all UIDs that wait when it begins.
"""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

from nvdra_api.ids import DomainUID
from nvdra_runtime.kube import connection, list_pages
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import translate_errors


class DomainName(NamedTuple):
    """Namespace and name of a domain."""

    namespace: str
    name: str


@dataclass(slots=True)
class _Search:
    wanted: set[DomainUID] = field(default_factory=set)
    found: dict[DomainUID, DomainName] = field(default_factory=dict)
    is_complete: bool = False


class UidSearch:
    """The searches of one plugin, one at a time."""

    def __init__(self, api: Client) -> None:
        self._api = api
        self._lock = asyncio.Lock()
        self._next: dict[str, _Search] = {}

    async def find(self, path: str, uid: DomainUID, deadline: float) -> DomainName | None:
        """The name of the domain with a UID; None if the collection has none.

        Args:
            path: The collection: the domains of a namespace, or all.
            uid: The UID.
            deadline: Monotonic seconds.

        Raises:
            RetryableError: `ApiUnavailable`: no answer by the deadline.
        """
        search = self._next.setdefault(path, _Search())
        search.wanted.add(uid)
        with translate_errors("GET", path, self._api.host):
            async with asyncio.timeout_at(deadline), self._lock:
                if not search.is_complete:
                    self._next.pop(path, None)  # who comes later needs a later list
                    await self._list(path, search, deadline)
        return search.found.get(uid)

    async def _list(self, path: str, search: _Search, deadline: float) -> None:
        pages = list_pages.pages(self._api, path, deadline, {}, connection.METADATA_LIST)
        async with aclosing(pages):
            async for page in pages:
                for metadata in (each["metadata"] for each in page.get("items") or ()):
                    uid = DomainUID(metadata["uid"])
                    if uid in search.wanted:
                        search.found[uid] = DomainName(metadata["namespace"], metadata["name"])
                if search.found.keys() == search.wanted:
                    break
        search.is_complete = True
