"""Reads the values file of a chart, within bounds.

A few lines of YAML with aliases can stand for more values than a computer has memory, so the size
and the depth are added up before anything is made of them.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from nvdra_api import texts
from nvdra_api.json_text import MAX_DIGITS
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    Event,
    ScalarEvent,
)

STANDARD_INPUT: Final = "-"
MAX_BYTES: Final = 1 << 20
"""The longest file. Helm stores a release, with its values, in a Secret of at most 1 MiB."""
MAX_VALUES: Final = 100_000
"""How many values a file may have, each alias counted as all that it stands for."""
MAX_DEPTH: Final = 64
"""The deepest nesting. PyYAML constructs values by recursion; a pod template has 10 levels."""

_NUMBER: Final = re.compile("[-+]?[0-9][0-9a-zA-Z_.:]*")
"""How the numbers of YAML 1.1 look, in all their bases."""
_NUMBER_TAGS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is 10 times faster


class ValuesFileError(ValueError):
    """The file holds no values that can be read."""


def read(file: str) -> dict[str, Any]:
    """Read a values file.

    Args:
        file: Its path, or `-` for the standard input.

    Raises:
        OSError: It cannot be read.
        ValuesFileError: It is too long or not UTF-8, not YAML, or something else than a map.
    """
    if file == STANDARD_INPUT:
        content = sys.stdin.buffer.read(MAX_BYTES + 1)
    else:
        with Path(file).open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    return parse(content)


def parse(content: bytes) -> dict[str, Any]:
    """Parse the content of a values file.

    Raises:
        ValuesFileError: As `read`.
    """
    if len(content) > MAX_BYTES:
        raise ValuesFileError(f"the file has more than {MAX_BYTES} bytes")
    try:
        text = content.decode()
        _check_size(yaml.parse(text, Loader=_Loader))
        values = yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader
    except ValuesFileError:
        raise
    except (yaml.YAMLError, ValueError) as error:  # such as a date of the 13th month
        raise ValuesFileError(str(error)) from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ValuesFileError(f"a values file is a map, not {type(values).__name__}")
    return values


def _check_size(events: Iterator[Event]) -> None:
    """Check how many values there are and how deep, with what aliases stand for.

    Raises:
        ValuesFileError: More than a bound.
    """
    anchors: dict[str, tuple[int, int]] = {}
    """The size and the height of what each anchor names."""
    open_: list[_Collection] = []
    count = 0
    for event in events:
        height = 0
        if isinstance(event, CollectionEndEvent):
            closed = open_.pop()
            height = closed.height + 1
            anchors[closed.anchor] = count - closed.count_before, height
        elif isinstance(event, CollectionStartEvent):
            open_.append(_Collection(event.anchor or "", count))
            count += 1
        elif isinstance(event, AliasEvent):
            if event.anchor not in anchors:  # or it stands for what contains it
                raise ValuesFileError(f"the alias {event.anchor} stands for nothing complete")
            size, height = anchors[event.anchor]
            count += size
        elif isinstance(event, ScalarEvent):
            _check_scalar(event)
            anchors[event.anchor or ""] = 1, 0
            count += 1
        if open_:
            open_[-1].height = max(open_[-1].height, height)
        if len(open_) + height > MAX_DEPTH:
            raise ValuesFileError(f"nested more than {MAX_DEPTH} levels deep")
        if count > MAX_VALUES:
            raise ValuesFileError(f"more than {MAX_VALUES} values, aliases included")


def _check_scalar(scalar: ScalarEvent) -> None:
    if texts.encodable(scalar.value) != scalar.value:
        raise ValuesFileError("a text has a lone surrogate, which is no character")
    is_number = scalar.tag in _NUMBER_TAGS or (
        not scalar.style and _NUMBER.fullmatch(scalar.value) is not None
    )
    if is_number and len(scalar.value) > MAX_DIGITS:
        raise ValuesFileError(f"a number has more than {MAX_DIGITS} digits")


@dataclass
class _Collection:
    """A map or a list that has begun.

    Attributes:
        anchor: Its name for aliases; may be empty.
        count_before: How many values there are before it.
        height: How many levels it has inside so far.
    """

    anchor: str
    count_before: int
    height: int = 0
