# SPDX-License-Identifier: Apache-2.0
"""A client that asks a listener as curl, a browser or a program would."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import aiohttp
import pytest


class Answer(NamedTuple):
    """What came back."""

    status: int
    content_type: str
    text: str
    headers: dict[str, str]


Ask = Callable[..., Awaitable[Answer]]


@pytest.fixture
async def ask() -> AsyncIterator[Ask]:
    """`await ask(address, "/path", accept="…", method="PUT", data="4")`."""
    async with aiohttp.ClientSession() as session:

        async def ask_(
            address: str,
            path: str,
            *,
            method: str = "GET",
            accept: str = "*/*",
            host: str | None = None,
            **more: Any,
        ) -> Answer:
            url = f"http://{address}{path}"
            headers = {"Accept": accept} if host is None else {"Accept": accept, "Host": host}
            async with session.request(method, url, headers=headers, **more) as answer:
                text = await answer.text()
                return Answer(answer.status, answer.content_type, text, dict(answer.headers))

        yield ask_
