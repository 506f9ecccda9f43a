# SPDX-License-Identifier: Apache-2.0
"""The values of arguments and of environment variables: lists, choices and flags.

Each function raises `argparse.ArgumentTypeError` with what would be right.
"""

from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from types import MappingProxyType

_TRUE = frozenset(("1", "t", "T", "true", "True", "TRUE"))  # as Go's strconv.ParseBool
_LONGEST_S = 86_400.0  # a day
_NOTHING: Mapping[str, str] = MappingProxyType({})
_FALSE = frozenset(("0", "f", "F", "false", "False", "FALSE"))


def texts(value: str) -> list[str]:
    """The texts of a comma list, without space around them."""
    return [text.strip() for text in value.split(",")]


def paths(value: str) -> list[str]:
    """The paths of a comma list, of which each may be a colon list like `LD_LIBRARY_PATH`."""
    return [path for text in texts(value) for path in text.split(":") if path]


def choice(*allowed: str, elsewhere: Mapping[str, str] = _NOTHING) -> Callable[[str], str]:
    """A function that takes one of these words in any case.

    Args:
        allowed: The words.
        elsewhere: Words that another program takes, and the remark on them.
    """

    def one(value: str) -> str:
        word = value.strip().lower()
        if word in elsewhere:
            raise ArgumentTypeError(f"{word} {elsewhere[word]}")
        if word not in allowed:
            raise ArgumentTypeError(f"must be {_alternatives(allowed)}")
        return word

    return one


def choices(*allowed: str) -> Callable[[str], list[str]]:
    """A function that takes a comma list of these words in any case."""
    one = choice(*allowed)
    return lambda value: [one(text) for text in texts(value)]


def flag(value: str) -> bool:
    """True or false."""
    if value not in _TRUE | _FALSE:
        raise ArgumentTypeError("must be true or false")
    return value in _TRUE


def seconds(value: str) -> float:
    """A duration of more than nothing and at most a day."""
    try:
        duration = float(value)
    except ValueError:
        duration = 0.0
    if not 0 < duration <= _LONGEST_S:
        raise ArgumentTypeError(f"must be a number of seconds up to {_LONGEST_S:.0f}")
    return duration


def _alternatives(words: tuple[str, ...]) -> str:
    return " or ".join((", ".join(words[:-1]), words[-1]))
