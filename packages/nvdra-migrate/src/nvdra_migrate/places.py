# SPDX-License-Identifier: Apache-2.0
"""Places in a file, as `--at` names them: `HelmRelease/gpu/dra:spec.values`. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

_STEP: Final = re.compile(r"(?:^|\.)((?:\\.|[^.\[\]\\])+)|\[([0-9]{1,6})\]")


class Place(NamedTuple):
    """Where a part of a file is.

    Attributes:
        document: The object, `KIND/NAME` or `KIND/NAMESPACE/NAME`; `#2` for the second document
            that is no object; empty for the first.
        path: The keys from there, with dots between them; empty for the whole.
    """

    document: str = ""
    path: str = ""

    def __str__(self) -> str:
        if self.document and self.path:
            return f"{self.document}:{self.path}"
        return self.document or self.path or "."

    def key(self, *keys: str) -> "Place":
        """The place of what is at these keys."""
        steps = [re.sub(r"([.\[\]\\])", r"\\\1", key) for key in keys]
        return Place(self.document, ".".join([*filter(None, [self.path]), *steps]))

    def item(self, index: int) -> "Place":
        """The place of an item of a list."""
        return Place(self.document, f"{self.path}[{index}]")

    def below(self, text: str) -> str | None:
        """The path from here to a place that is written; None if it is elsewhere."""
        own = str(self)
        if own in (".", text):
            return text.removeprefix(own)
        if not text.startswith(own):
            return None
        rest = text[len(own) :]
        return rest[1:] if rest[:1] in (".", ":") else rest if rest[:1] == "[" else None


def of_object(document: Mapping[str, Any], otherwise: Place) -> Place:
    """The place of a Kubernetes object, or of anything else the other one."""
    metadata = document.get("metadata")
    kind = document.get("kind")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(kind, str) or not isinstance(name, str) or "apiVersion" not in document:
        return otherwise
    namespace = metadata.get("namespace") if isinstance(metadata, Mapping) else None
    return Place("/".join([kind, *([namespace] if isinstance(namespace, str) else []), name]))


def found(value: Any, path: str) -> Any:
    """What is at a path.

    Raises:
        KeyError: Nothing is there.
    """
    for step in _steps(path):
        inside = dict(enumerate(value)) if isinstance(value, list) else value
        if not isinstance(inside, Mapping) or step not in inside:
            raise KeyError(path)
        value = inside[step]
    return value


def _steps(path: str) -> Iterator[str | int]:
    at = 0
    while at < len(path):
        match = _STEP.match(path, at)
        if not match:
            raise KeyError(path)
        key, index = match.groups()
        yield int(index) if index is not None else re.sub(r"\\(.)", r"\1", key)
        at = match.end()
