# SPDX-License-Identifier: Apache-2.0
"""How helm joins values: files over files, and `--set` over both. Pure.

Source: helm.sh/helm/v3, `pkg/cli/values` and `pkg/strvals`. The charts' tests compare both with
helm.
"""

import copy
import re
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, Final, NamedTuple

from nvdra_migrate.values_text import MAX_DEPTH, ValuesFileError

_MAX_GAP: Final = 16
"""How far a setting may be behind the end of its list. helm makes up to 65,536 items for it."""
_MAX_DIGITS: Final = 9
"""The longest index."""
_INTEGER: Final = re.compile("[-+]?[0-9]+")
_WORDS: Final = {"true": True, "false": False, "null": None, "0": 0}
_MIN_INT, _MAX_INT = -(1 << 63), (1 << 63) - 1


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two values files as one: maps are joined, of anything else the one above counts."""
    found = dict(below)
    for key, value in above.items():
        under = found.get(key)
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            value = merged(under, value)
        found[key] = value
    return found


class Setting(NamedTuple):
    r"""An argument of `--set` or `--set-string`.

    Attributes:
        name: Where the value is: `a.b`, `a[0].b`, `a\.b` for a dot in a key.
        text: The value. `{a,b}` is a list; a comma that should not end it has a backslash.
        is_text: Whether numbers, booleans and null are texts.
    """

    name: str
    text: str
    is_text: bool


def with_settings(values: Mapping[str, Any], settings: Iterable[Setting]) -> dict[str, Any]:
    """The values with more of them set.

    Args:
        values: The values below.
        settings: In the order of the command line. helm takes those with a text last.

    Raises:
        ValuesFileError: helm refuses a setting.
    """
    found = copy.deepcopy(dict(values))
    for setting in sorted(settings, key=attrgetter("is_text")):
        text = f"{setting.name}={setting.text}"
        try:
            _Argument(text, is_text=setting.is_text).apply(found)
        except _SyntaxError as error:
            raise ValuesFileError(f"helm takes no {text}: {error}") from error
    return found


class _SyntaxError(ValueError):
    pass


class _Argument:
    """Reads the argument of `--set`, from the left to the right."""

    def __init__(self, text: str, *, is_text: bool) -> None:
        self._text = text
        self._at = 0
        self._is_text = is_text

    def apply(self, values: dict[str, Any]) -> None:
        """Change the values.

        Raises:
            _SyntaxError: helm refuses it.
        """
        while self._at < len(self._text):
            self._set_key(values, 0)

    def _set_key(self, values: dict[str, Any], depth: int) -> None:
        """Set what begins here in a map."""
        key, end = self._until("=[,.")
        value: Any
        if end == "=":
            value = self._value()
        elif end == "[":
            value = values.get(key, [])
            if not isinstance(value, list):
                raise _SyntaxError(f"{key} is no list")
            self._set_item(value, depth)
        elif end == ".":
            value = values.get(key, {})
            if not isinstance(value, dict):
                raise _SyntaxError(f"{key} is no map")
            if depth >= MAX_DEPTH:
                raise _SyntaxError(f"it has more than {MAX_DEPTH} levels")
            self._set_key(value, depth + 1)
        else:
            value = None
        if end not in ("=", "[", ".") or (end == "." and not value):
            raise _SyntaxError(f"{key} has no value")
        if key:  # helm ignores one without a name
            values[key] = value

    def _set_item(self, items: list[Any], depth: int) -> None:
        """Set what begins after the `[` of a list."""
        number, end = self._until("]")
        is_number = end and _INTEGER.fullmatch(number) and len(number) <= _MAX_DIGITS
        index = int(number) if is_number else -1
        if not 0 <= index <= len(items) + _MAX_GAP:
            raise _SyntaxError(f"{number} is no index of a list of {len(items)}")
        items.extend([None] * (index + 1 - len(items)))
        between, end = self._until("[.=")
        if between or depth >= MAX_DEPTH:
            raise _SyntaxError(f"{between} is after the index of a list")
        inner: Any = items[index]
        if end == "=":
            inner = self._value()
        elif end == "[":
            inner = inner if isinstance(inner, list) else []
            self._set_item(inner, depth + 1)
        elif end == ".":
            inner = inner if isinstance(inner, dict) else {}
            self._set_key(inner, depth + 1)
        else:
            raise _SyntaxError("it has no value")
        items[index] = inner

    def _value(self) -> Any:
        if not self._text.startswith("{", self._at):
            return self._typed(self._until(",")[0])
        self._at += 1
        items = []
        end = ","
        while end == ",":
            text, end = self._until(",}")
            items.append(self._typed(text))
        if not end:
            raise _SyntaxError("a list ends with }")
        if self._text.startswith(",", self._at):
            self._at += 1
        return items

    def _until(self, ends: str) -> tuple[str, str]:
        """The text up to one of these letters, without backslashes, and that letter."""
        found: list[str] = []
        while self._at < len(self._text):
            letter = self._text[self._at]
            self._at += 1
            if letter in ends:
                return "".join(found), letter
            if letter == "\\":
                letter = self._text[self._at : self._at + 1]
                self._at += 1
            found.append(letter)
        return "".join(found), ""

    def _typed(self, text: str) -> Any:
        if self._is_text:
            return text
        if text.lower() in _WORDS:
            return _WORDS[text.lower()]
        if _INTEGER.fullmatch(text) and text[0] != "0" and len(text) <= len(str(_MIN_INT)):
            number = int(text)
            return number if _MIN_INT <= number <= _MAX_INT else text
        return text
