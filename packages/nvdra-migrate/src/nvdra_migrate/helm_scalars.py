# SPDX-License-Identifier: Apache-2.0
"""How helm reads a scalar of YAML that has no quotes, and a key that is no text. Pure.

helm reads YAML 1.1 without its numbers of base 60 and its dates, and with the octal numbers of
YAML 1.2, and turns the result into JSON.

Source: go.yaml.in/yaml/v2, `resolve`; sigs.k8s.io/yaml, `convertToJSONableObject`. The charts'
tests compare both with helm.
"""

import math
import re
import struct
from collections.abc import Mapping
from typing import Final

Scalar = str | bool | int | float | None

_WORDS: Final[Mapping[str, Scalar]] = {
    form: value
    for value, words in (
        (True, ("y", "yes", "true", "on")),
        (False, ("n", "no", "false", "off")),
        (None, ("null",)),
        (math.inf, (".inf", "+.inf")),
        (-math.inf, ("-.inf",)),
    )
    for word in words
    for form in (word, word.capitalize(), word.upper())
} | {
    **dict.fromkeys((".Inf", "+.Inf"), math.inf),
    "-.Inf": -math.inf,
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    "": None,
    "~": None,
}
_INTEGER: Final = re.compile(
    r"(?P<sign>[-+]?)(?:0[xX](?P<hex>[0-9a-fA-F]+)|0[bB](?P<binary>[01]+)"
    r"|0[oO]?(?P<octal>[0-7]+)|(?P<decimal>0|[1-9][0-9]*))",
)
_BASES: Final = {"hex": 16, "binary": 2, "octal": 8, "decimal": 10}
_SIGNED_BINARY: Final = re.compile("0b(?P<number>[-+][01]+)")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_FRACTION: Final = re.compile(r"\.[0-9]+(_[0-9]+)*([eE][-+]?[0-9]+(_[0-9]+)*)?")
_MIN_INT, _MAX_INT, _MAX_UNSIGNED = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1
_MAX_DIGITS: Final = 64
"""No integer of 64 bits has more, in any base; zeros before it are left out."""


def read(text: str) -> Scalar:
    """What a scalar without quotes and without a tag stands for."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] == ".":
        return _float(text) if _FRACTION.fullmatch(text) else text
    if text[0] not in "+-0123456789":
        return text
    digits = text.replace("_", "")
    whole = _integer(digits)
    if whole is not None:
        return whole
    number = _float(digits) if _FLOAT.fullmatch(digits) else digits
    return text if isinstance(number, str) else number


def key(value: Scalar) -> str | None:
    """A key of a map as helm writes it in JSON, or None if helm refuses it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if value <= _MAX_INT else None
    if isinstance(value, float):
        return _short(value)
    return value


def _integer(digits: str) -> int | None:
    """An integer of 64 bits, in any base."""
    signed = _SIGNED_BINARY.fullmatch(digits)
    if signed:
        return _within(int(signed["number"], 2) if len(digits) <= _MAX_DIGITS else None)
    match = _INTEGER.fullmatch(digits)
    if not match:
        return None
    ((base, number),) = ((base, match[base]) for base in _BASES if match[base])
    number = number.lstrip("0") or "0"
    if len(number) > _MAX_DIGITS:
        return None
    value = int(f"{match['sign']}{number}", _BASES[base])
    return value if not match["sign"] and value <= _MAX_UNSIGNED else _within(value)


def _within(value: int | None) -> int | None:
    return value if value is not None and _MIN_INT <= value <= _MAX_INT else None


def _float(text: str) -> float | str:
    """The number, or the text if it is beyond the numbers of 64 bits."""
    number = float(text)
    return text if math.isinf(number) else number


def _short(value: float) -> str:
    """A float with the fewest digits that name it among those of 32 bits, as Go's format `g`."""
    if math.isnan(value):
        return ".nan"
    single = _single(value)
    if math.isinf(single):
        return ".inf" if single > 0 else "-.inf"
    text = next(
        text
        for text in (f"{single:.{digits}e}" for digits in range(17))
        if _single(float(text)) == single
    )
    mantissa, _, exponent = text.partition("e")
    power = int(exponent)
    if not -4 <= power < 6:
        return f"{mantissa}e{power:+03}"
    return f"{single:.{max(0, len(mantissa.lstrip('-').replace('.', '')) - 1 - power)}f}"


def _single(value: float) -> float:
    """The nearest float of 32 bits."""
    try:
        (single,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        return math.copysign(math.inf, value)
    return float(single)
