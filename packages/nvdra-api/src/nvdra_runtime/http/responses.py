# SPDX-License-Identifier: Apache-2.0
"""Responses with text, which a browser or a terminal shows: the only place that makes them."""

import json
from collections.abc import Mapping
from http import HTTPStatus

from aiohttp import web
from nvdra_api import terminal_text


def of_text(
    text: str,
    status: int = HTTPStatus.OK,
    content_type: str = "text/plain",
    headers: Mapping[str, str] | None = None,
) -> web.Response:
    """A response with lines of text."""
    return web.Response(
        text=terminal_text.lines(text), status=status, content_type=content_type, headers=headers
    )


def of_document(document: object, status: int = HTTPStatus.OK) -> web.Response:
    """A response with a JSON document, indented for readers."""
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return of_text(text, status, "application/json")
