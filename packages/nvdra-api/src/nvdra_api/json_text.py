# SPDX-License-Identifier: Apache-2.0
r"""The parser of all JSON that others write, and the bounds that it has.

A user writes claims, templates and annotations, a container writes files, and a pod that
reaches a port sends bodies. The API server keeps opaque parameters byte for byte, so an answer of
it can hold what no parser of ours should meet: a million brackets, `"\ud800"`, a number of a
million digits. Nothing is computed from a text before it has passed `parse`, `parse_objects` or
`check`.

pydantic's parser does the work. It needs none of Python's stack and its time grows with the length
only. Where it refuses a text, `_Scanner` finds the field and what exceeds which bound.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from pydantic_core import from_json

from nvdra_api import texts

MAX_DEPTH: Final = 200
"""The deepest nesting of objects and arrays, which pydantic's parser has built in. An object of
Kubernetes needs about 20 levels, and Python 3.11 can walk 900 by recursion."""
MAX_DIGITS: Final = 4300
"""The longest number: Python converts no longer one, because that takes quadratic time
(`sys.set_int_max_str_digits`). 64-bit integers have 19 digits."""
MAX_CONFIG_BYTES: Final = 16 * 1024
"""The longest opaque parameters. The API server stores 10 KiB; ours with a limit for each device of
a claim have 2."""
MAX_OBJECT_BYTES: Final = 16 << 20
"""The longest text of one object. A value in etcd has at most 1.5 MiB, of which Go's encoder can
make six times as much: it writes `<` as `\\u003c`."""
MAX_FILE_BYTES: Final = 1 << 20
"""The longest file of our own. The largest, a state of health, has some KiB."""

_MAX_PARTS: Final = 16
"""How many names and indices a path shows: twice as many as the path of a config's field has."""
_MAX_PART: Final = 64
_MAX_TOKENS: Final = 20_000
"""How far a field is looked for, which takes 0.01 s. Beyond, an error has a column instead."""
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[][{},:]|-?[0-9][0-9.eE+-]*+', re.DOTALL)
_SURROGATES: Final = re.compile(
    rb"(?<!\\)((?:\\\\)*+)"
    rb"(?:(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2}))"
)
"""A pair of escaped surrogates, which is a character, or a single one, which is not."""
_MAY_BE_INFINITE: Final = re.compile(
    rb"(?:^|[][:,\s])-?[0-9][0-9.]*+[eE]\+?[0-9]{3}|(?<![0-9])[0-9]{200}"
)
"""A number that may exceed 64-bit floats (1.8e308), or looks like one inside a string."""


class JsonTextError(ValueError):
    """A text is not JSON, or exceeds a bound."""


class OutOfBoundsError(JsonTextError):
    """A text may be JSON, but exceeds a bound.

    Attributes:
        path: The field, such as `spec.devices.config[0]`; empty if it is not known.
        why: What exceeds which bound.
    """

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}" if path else why)
        self.path = path
        self.why = why


def parse(text: str | bytes, max_bytes: int = MAX_OBJECT_BYTES) -> Any:
    """Parse JSON.

    Raises:
        OutOfBoundsError: The text exceeds a bound.
        JsonTextError: The text is not JSON.
    """
    data = _bounded(text, max_bytes)
    value = _parse(data)
    if _MAY_BE_INFINITE.search(data):
        _require_finite(data)
    return value


def check(text: str | bytes, max_bytes: int = MAX_OBJECT_BYTES) -> str:
    """Return JSON text that `json` can parse in linear time and without a deep recursion.

    Numbers must be parsed by `finite`. A short text is not parsed to find that out, and need not be
    JSON.

    Raises:
        OutOfBoundsError: The text exceeds a bound.
        JsonTextError: The text is not JSON.
    """
    data = _bounded(text, max_bytes)
    is_shallow = data.count(b"[") + data.count(b"{") <= MAX_DEPTH
    if not is_shallow or b"\\u" in data:
        _parse(data)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise find_excess(data) or OutOfBoundsError("", _NOT_UTF8) from error


def refusal(text: str) -> JsonTextError:
    """Say what is wrong with a text that `json` has refused."""
    try:
        parse(text)
    except JsonTextError as error:
        return error
    return JsonTextError("not valid JSON")


def parse_objects(text: bytes, max_bytes: int) -> Any:
    """Parse an answer that holds objects of many users, such as a list.

    What exceeds a bound in one of them is replaced, by null or by U+FFFD in a text, so that the
    others can be read. A number beyond the range of floats is infinite.

    Raises:
        OutOfBoundsError: The text is too long.
        JsonTextError: The text is not JSON.
    """
    data = _bounded(text, max_bytes)
    try:
        return _parse(data)
    except OutOfBoundsError:
        return _parse_repaired(_valid(data))


def find_excess(text: bytes) -> OutOfBoundsError | None:
    """Return the first thing in a text that exceeds a bound, with its field."""
    found = next(_Scanner(text, _MAX_TOKENS).run(), None)
    return None if found is None else OutOfBoundsError(found.path, found.why)


def finite(text: str) -> float:
    """Parse a number that is not an integer, as `json.JSONDecoder(parse_float=…)`.

    Raises:
        JsonTextError: It exceeds 64-bit floats.
    """
    number = float(text)
    if not math.isfinite(number):
        raise OutOfBoundsError("", _INFINITE)
    return number


def shown_path(parts: list[int | bytes]) -> str:
    """Return a path such as `spec.devices.config[0]`, which may be cut."""
    shown = "".join(
        f"[{part}]" if isinstance(part, int) else f".{_name(part)}" for part in parts[:_MAX_PARTS]
    ).removeprefix(".")
    return shown if len(parts) <= _MAX_PARTS else f"{shown}…"


@dataclass(frozen=True, slots=True)
class _Excess:
    """What exceeds a bound.

    Attributes:
        path: The field.
        why: Which bound.
        start: Offset of the first byte.
        end: Offset after the last byte.
        instead: What can be there instead.
    """

    path: str
    why: str
    start: int
    end: int
    instead: bytes = b"null"


_SURROGATE: Final = r"the text has a lone surrogate, such as \ud800, which is no character"
_NOT_UTF8: Final = "the text is not UTF-8"
_INFINITE: Final = "the number is beyond the range of 64-bit floats"
_DIGITS: Final = f"the number has more than {MAX_DIGITS} digits"
_DEPTH: Final = f"objects and arrays are nested more than {MAX_DEPTH} levels deep"

_EXCEEDED: Final = {
    "recursion limit exceeded": _DEPTH,
    "number out of range": _DIGITS,
    "lone leading surrogate": _SURROGATE,
    "unexpected end of hex escape": _SURROGATE,
    "invalid unicode code point": _NOT_UTF8,
}
"""How messages of pydantic's parser begin, for what Go's parser lets through."""


class _Scanner:
    """Finds what exceeds a bound, without recursion. The text need not be JSON otherwise."""

    def __init__(self, text: bytes, max_tokens: int) -> None:
        self._text = text
        self._max_tokens = max_tokens
        self._parts: list[int | bytes] = []
        self._is_name = False
        self._skipped_from = -1

    def run(self) -> Iterator[_Excess]:
        """Yield what is found, in the order of the text."""
        for token in islice(_TOKEN.finditer(self._text), self._max_tokens):
            kind = token[0][:1]
            if kind in b"[{":
                self._open(kind, token.start())
            elif kind in b"]}":
                yield from self._close(token.end())
            elif self._skipped_from >= 0:
                continue
            elif kind == b",":
                self._next()
            elif kind == b":":
                self._is_name = False
            elif kind == b'"':
                yield from self._string(token)
            else:
                yield from self._number(token)
        if self._skipped_from >= 0:
            yield self._excess(_DEPTH, self._skipped_from, len(self._text))

    def _open(self, kind: bytes, start: int) -> None:
        if len(self._parts) == MAX_DEPTH and self._skipped_from < 0:
            self._skipped_from = start
        self._parts.append(0 if kind == b"[" else b"")
        self._is_name = kind == b"{"

    def _close(self, end: int) -> Iterator[_Excess]:
        if self._parts:
            self._parts.pop()
        self._is_name = False
        if self._skipped_from >= 0 and len(self._parts) == MAX_DEPTH:
            yield self._excess(_DEPTH, self._skipped_from, end)
            self._skipped_from = -1

    def _next(self) -> None:
        if not self._parts:
            return
        last = self._parts[-1]
        if isinstance(last, int):
            self._parts[-1] = last + 1
        else:
            self._is_name = True

    def _string(self, token: re.Match[bytes]) -> Iterator[_Excess]:
        text = token[0]
        if self._is_name and self._parts:
            self._parts[-1] = text.strip(b'"')
        if b"\\u" in text and any(found["lone"] for found in _SURROGATES.finditer(text)):
            yield self._excess(_SURROGATE, token.start(), token.end(), _valid(text))
        elif not text.isascii() and _valid(text) != text:
            yield self._excess(_NOT_UTF8, token.start(), token.end(), _valid(text))

    def _number(self, token: re.Match[bytes]) -> Iterator[_Excess]:
        if len(token[0]) > MAX_DIGITS:
            yield self._excess(_DIGITS, token.start(), token.end())
        elif len(token[0]) > 4 and _is_infinite(token[0]):
            yield self._excess(_INFINITE, token.start(), token.end())

    def _excess(self, why: str, start: int, end: int, instead: bytes = b"null") -> _Excess:
        return _Excess(shown_path(self._parts), why, start, end, instead)


def _valid(text: bytes) -> bytes:
    """JSON text with U+FFFD for whatever is no character."""
    if b"\\u" in text:
        text = _SURROGATES.sub(
            lambda found: found[1] + rb"\ufffd" if found["lone"] else found[0], text
        )
    return text if text.isascii() else text.decode(errors="replace").encode()


def _is_infinite(number: bytes) -> bool:
    try:
        return not math.isfinite(float(number))
    except ValueError:
        return False  # it is not JSON, which the parser says


def _parse(data: bytes) -> Any:
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise _refusal(data, error) from error


def _parse_repaired(data: bytes) -> Any:
    """Parse a text whose strings are valid, with null for what exceeds another bound."""
    try:
        return _parse(data)
    except OutOfBoundsError:
        parts: list[bytes] = []
        end = 0
        for excess in _Scanner(data, len(data)).run():
            parts += (data[end : excess.start], excess.instead)
            end = excess.end
        return _parse(b"".join((*parts, data[end:])))


def _bounded(text: str | bytes, max_bytes: int) -> bytes:
    try:
        data = text.encode() if isinstance(text, str) else text
    except UnicodeEncodeError as error:
        raise OutOfBoundsError("", _SURROGATE) from error
    if len(data) > max_bytes:
        raise OutOfBoundsError("", f"the text has {len(data)} bytes, more than {max_bytes}")
    return data


def _refusal(data: bytes, error: ValueError) -> JsonTextError:
    """Say what the parser refuses, and where."""
    said = str(error)
    for begin, why in _EXCEEDED.items():
        if said.startswith(begin):
            return find_excess(data) or OutOfBoundsError("", f"{why} ({said})")
    return JsonTextError(f"not valid JSON: {said}")


def _require_finite(data: bytes) -> None:
    try:
        json.loads(data, parse_float=finite)
    except OutOfBoundsError as error:
        raise find_excess(data) or error from error


def _name(part: bytes) -> str:
    return texts.shortened(part.decode(errors="replace"), _MAX_PART)
