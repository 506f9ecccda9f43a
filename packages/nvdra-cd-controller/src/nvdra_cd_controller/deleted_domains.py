# SPDX-License-Identifier: Apache-2.0
"""Which UIDs, of those that objects carry, are of no domain that exists.

A domain that the informer does not show may exist all the same, for a moment. So the API server is
asked before the remains of one are removed. Any user may write thousands of UIDs into labels, and
no selector selects by UID: one list of all domains answers for all UIDs that are known when it
begins, and there is at most one list a second. A UID is never used again.
"""

import asyncio
import math
from collections.abc import Callable, Collection
from contextlib import aclosing
from typing import Final

from nvdra_api import names
from nvdra_api.ids import DomainUID
from nvdra_runtime.kube import connection, list_pages
from nvdra_runtime.kube.client import Client

from nvdra_cd_controller import api_paths

_MIN_INTERVAL_S: Final = 1.0


class DeletedDomains:
    """What is known of UIDs without a domain."""

    def __init__(self, api: Client, known_uids: Callable[[], Collection[DomainUID]]) -> None:
        """Know nothing.

        Args:
            api: The API server.
            known_uids: Returns the UIDs of all domains of which there is an object.
        """
        self._api = api
        self._known_uids = known_uids
        self._deleted: frozenset[DomainUID] = frozenset()
        self._next_at = -math.inf

    async def contains(self, uid: DomainUID) -> bool:
        """Whether no domain has the UID; False also while that is not known: ask again later.

        Raises:
            DriverError: The API server was asked and did not answer.
        """
        now = asyncio.get_running_loop().time()
        if uid not in self._deleted and now >= self._next_at:
            self._next_at = math.inf  # until the list has ended
            try:
                await self._list(uid)
            finally:
                self._next_at = asyncio.get_running_loop().time() + _MIN_INTERVAL_S
        return uid in self._deleted

    async def _list(self, uid: DomainUID) -> None:
        asked = {uid, *self._known_uids()}
        domains = api_paths.path(names.DOMAIN_KIND)
        pages = list_pages.pages(self._api, domains, math.inf, {}, connection.METADATA_LIST)
        async with aclosing(pages):
            async for page in pages:
                asked -= {DomainUID(each["metadata"]["uid"]) for each in page.get("items") or ()}
        self._deleted = frozenset(asked)
