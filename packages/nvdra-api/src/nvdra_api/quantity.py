# SPDX-License-Identifier: Apache-2.0
"""Kubernetes quantities (`k8s.io/apimachinery/pkg/api/resource`) with exact arithmetic.

The amount of a text is that of Kubernetes, or the text is refused: Kubernetes takes `1e999999999`
and keeps the exponent, while arithmetic with it would need gigabytes.

Source: docs/reference/gpu-devices.md, "Rendering of quantities", docs/reference/api-types.md,
"Quantity".
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import total_ordering
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

TOLERANT = "tolerant"
"""Key of the validation context that is set during tolerant decoding; see `nvdra_api.decoding`."""

MAX_CHARACTERS = 256
"""The longest text. A Kubernetes object needs 20: 2^63 has 19 digits."""
MAX_EXPONENT = 99
"""The largest exponent of a number such as `5e9`, and the smallest with the sign reversed."""

_KUBERNETES_PATTERN = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
_PATTERN = re.compile(
    # Each part is possessive, or a long number that something follows takes quadratic time.
    "([+-]?)([0-9]*+)(?:[.]([0-9]*+))?+([eEinumkKMGTP]*+)([-+]?[0-9]*+)"
)
_EXPONENT = re.compile("[eE]([+-]?[0-9]+)")
_NANO_DIGITS = 9
_NANO = 10**_NANO_DIGITS
"""Kubernetes counts whole nanounits, and rounds away from zero."""
_MAX_BINARY = 2**63 - 1
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}


class QuantityBoundError(ValueError):
    """The text is a quantity for Kubernetes, but exceeds a bound of ours."""


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """An exact amount and the family of suffixes that it is written with.

    Quantities compare by amount: `1024Mi` equals `1Gi`. A pydantic field of this type accepts a
    quantity, a string or a number, and is written as a string.

    Attributes:
        amount: The amount, in the unit of the field that holds the quantity.
        is_binary: Whether the amount is written with Ki, Mi, Gi, … instead of k, M, G, ….
    """

    amount: Fraction
    is_binary: bool = False

    @classmethod
    def binary(cls, amount: int) -> "Quantity":
        """Return a quantity that is written with Ki, Mi, Gi, …: `42949672960` becomes `40Gi`."""
        return cls(Fraction(amount), is_binary=True)

    @classmethod
    def decimal(cls, amount: int) -> "Quantity":
        """Return a quantity that is written with k, M, G, …: `2000` becomes `2k`."""
        return cls(Fraction(amount))

    @classmethod
    def parse(cls, text: str) -> "Quantity":
        """Parse a quantity as Kubernetes does.

        Raises:
            QuantityBoundError: The text is too long, or has too large an exponent.
            ValueError: The text is not a quantity. The error texts are those of Kubernetes.
        """
        if len(text) > MAX_CHARACTERS:
            raise QuantityBoundError(f"quantities must have at most {MAX_CHARACTERS} characters")
        match = _PATTERN.fullmatch(text)
        if match is None or not (match[2] or match[3]):
            raise ValueError(
                f"quantities must match the regular expression '{_KUBERNETES_PATTERN}'"
            )
        sign, whole, fraction, letters, exponent = match.groups(default="")
        suffix = letters + exponent
        digits = int(whole + fraction)
        is_binary = suffix in _BINARY
        if is_binary:
            nano = digits * 1024 ** _BINARY[suffix] * _NANO
            nano = min(_divided(nano, 10 ** len(fraction)), _MAX_BINARY * _NANO)
        else:
            power = _decimal_exponent(suffix) + _NANO_DIGITS - len(fraction)
            nano = digits * 10**power if power >= 0 else _divided(digits, 10**-power)
        return cls(Fraction(-nano if sign == "-" else nano, _NANO), is_binary)

    def __str__(self) -> str:
        """Return the canonical text, with the largest suffix that leaves a whole number."""
        if self.is_binary and abs(self.amount) >= 1024 and self.amount.denominator == 1:
            return _format(self.amount, 1024, _BINARY, 0)
        return _format(self.amount * 10**9, 1000, _DECIMAL, -3)

    def __eq__(self, other: object) -> bool:
        return self.amount == other.amount if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: "Quantity") -> bool:
        return self.amount < other.amount

    def __hash__(self) -> int:
        return hash(self.amount)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Accept what Kubernetes accepts in JSON, and write the canonical text."""
        return core_schema.with_info_plain_validator_function(
            _from_json, serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the JSON schema of a quantity."""
        return {"anyOf": [{"type": "number"}, {"type": "string", "pattern": _KUBERNETES_PATTERN}]}


def _from_json(value: Any, info: ValidationInfo) -> Quantity:
    if value is None and info.context and info.context.get(TOLERANT):
        return Quantity.decimal(0)  # The reference driver reads a null as zero.
    if isinstance(value, Quantity):
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise PydanticCustomError("quantity_type", "not a quantity")
    try:
        return Quantity.parse(value.strip(" ") if isinstance(value, str) else repr(value))
    except QuantityBoundError as error:
        raise PydanticCustomError("quantity_bound", "{text}", {"text": str(error)}) from error
    except ValueError as error:
        raise PydanticCustomError("quantity", "{text}", {"text": str(error)}) from error


def _divided(amount: int, by: int) -> int:
    return -(-amount // by)


def _decimal_exponent(suffix: str) -> int:
    """Return the power of ten that a suffix means.

    Raises:
        ValueError: It means none, or one that is too large.
    """
    if suffix in _DECIMAL:
        return 3 * _DECIMAL[suffix]
    found = _EXPONENT.fullmatch(suffix)
    if found is None:
        raise ValueError("unable to parse quantity's suffix")
    exponent = int(found[1])
    if abs(exponent) > (bound := MAX_EXPONENT):
        raise QuantityBoundError(f"quantities must have an exponent from -{bound} to {bound}")
    return exponent


def _format(amount: Fraction, base: int, suffixes: dict[str, int], lowest: int) -> str:
    """Divide by `base` while the result is whole. Amounts below the lowest suffix round up."""
    whole = -(-amount.numerator // amount.denominator)
    by_power = {power: suffix for suffix, power in suffixes.items()}
    power = lowest if whole else 0
    while whole and whole % base == 0 and power < max(by_power):
        whole //= base
        power += 1
    return f"{whole}{by_power.get(power, '')}"
