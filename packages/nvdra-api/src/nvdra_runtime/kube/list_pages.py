# SPDX-License-Identifier: Apache-2.0
"""Lists a collection in pages of a few MiB, whatever the size of its objects.

Source: docs/reference/api-server.md, "List and watch".
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Final

from nvdra_api.json_text import MAX_OBJECT_BYTES
from nvdra_api.meta import JsonObject

from nvdra_runtime.kube import page_limits
from nvdra_runtime.kube.client import MAX_LIST_BYTES, Call, Client
from nvdra_runtime.kube.connection import JSON
from nvdra_runtime.kube.errors import AnswerTooLong, invalid_response

PAGE_TIMEOUT_S: Final = 30.0
"""Of one page. A list has no limit of its own: a user who writes gigabytes makes it longer, and
keeps it from no end."""


async def pages(
    api: Client,
    path: str,
    deadline: float,
    params: Mapping[str, str],
    accept: str = JSON,
    *,
    is_whole_first: bool = False,
) -> AsyncGenerator[JsonObject]:
    """Yield the pages of a list. Only the last one has no `metadata.continue`.

    Keep no page while the next one is asked for: one page at a time is what bounds the memory.

    Args:
        api: The API server.
        path: The collection.
        deadline: Monotonic seconds, of the whole list; infinite for none but that of each page.
        params: Selectors.
        accept: Media type of the answers.
        is_whole_first: Ask for everything at once first, which the server answers from its memory,
            and for pages only if that is too long.

    Raises:
        Gone: The server has forgotten the list before its last page.
        RetryableError: Any other error.
    """
    limit = 0 if is_whole_first else page_limits.FIRST_LIMIT
    token = ""
    while True:
        more = {"limit": str(limit)} if limit else {}
        if token:
            more["continue"] = token
        page_deadline = min(deadline, asyncio.get_running_loop().time() + PAGE_TIMEOUT_S)
        try:
            asked = {**params, **more}
            page, size = await api.list_page(
                Call("GET", path, page_deadline, asked, accept=accept, max_bytes=_max_bytes(limit))
            )
        except AnswerTooLong:
            if limit == 1:
                raise
            limit = page_limits.smaller_limit(limit) if limit else page_limits.FIRST_LIMIT
            continue
        with invalid_response("GET", path):
            token = str((page.get("metadata") or {}).get("continue") or "")
            count = len(page.get("items") or ())
        yield page
        del page
        if not token:
            return
        limit = page_limits.next_limit(limit or page_limits.FIRST_LIMIT, count, size)


def _max_bytes(limit: int) -> int:
    if limit == 0:
        return MAX_LIST_BYTES
    return MAX_OBJECT_BYTES if limit == 1 else page_limits.MAX_BYTES
