"""Paths as text: cleaned and counted as the reference library does it, without any file system."""

import posixpath


def clean(path: str) -> str:
    """The shortest way to write a path: no `.`, no `..` it can do without, no doubled slash."""
    cleaned = posixpath.normpath(path) if path else "."
    return f"/{cleaned.lstrip('/')}" if cleaned.startswith("/") else cleaned


def depth(path: str) -> int:
    """How many slashes the cleaned path has; a parent has no more than what lies in it."""
    return clean(path).count("/")
