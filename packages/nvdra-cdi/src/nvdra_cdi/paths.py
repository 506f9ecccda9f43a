# SPDX-License-Identifier: Apache-2.0
"""Functions on path strings, with the results of the CDI reference library. No file access."""

import posixpath


def clean(path: str) -> str:
    """The shortest equivalent path, like Go's `path.Clean`."""
    cleaned = posixpath.normpath(path) if path else "."
    return f"/{cleaned.lstrip('/')}" if cleaned.startswith("/") else cleaned


def depth(path: str) -> int:
    """The number of slashes in the cleaned path. A parent's depth is at most its children's."""
    return clean(path).count("/")
