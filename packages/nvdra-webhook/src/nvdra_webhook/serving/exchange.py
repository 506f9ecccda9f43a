# SPDX-License-Identifier: Apache-2.0
"""A request and its response, as the server hands them over."""

from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple

from nvdra_api import terminal_text

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


class HttpRequest(NamedTuple):
    """A request that was received completely.

    Attributes:
        method: In capitals.
        path: Without the query.
        query: What follows the question mark, not decoded.
        content_type: As it was sent; empty if it was not.
        body: The whole body.
    """

    method: str
    path: str
    query: str
    content_type: str
    body: bytes


class HttpResponse(NamedTuple):
    """A response without the headers that concern the connection."""

    status: HTTPStatus
    body: bytes
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of_text(cls, status: HTTPStatus, text: str, *headers: tuple[str, str]) -> "HttpResponse":
        """A response with one line of text."""
        return cls(status, f"{terminal_text.lines(text)}\n".encode(), TEXT, headers)


Respond = Callable[[HttpRequest], HttpResponse]
"""Answers a request. It must not block, and an exception from it is answered with 500."""
