"""Kubernetes quantities (`k8s.io/apimachinery/pkg/api/resource`) with exact arithmetic.

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

_PATTERN = re.compile(r"^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$")
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}


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
            ValueError: The text is not a quantity. The error texts are those of Kubernetes.
        """
        match = _PATTERN.match(text)
        if match is None or match[1].count(".") > 1 or not any(map(str.isdigit, match[1])):
            raise ValueError(f"quantities must match the regular expression '{_PATTERN.pattern}'")
        number, suffix = Fraction(match[1].rstrip(".")), match[2]
        if suffix in _BINARY:
            return cls(number * 1024 ** _BINARY[suffix], is_binary=True)
        if suffix in _DECIMAL:
            return cls(number * Fraction(1000) ** _DECIMAL[suffix])
        if exponent := re.fullmatch(r"[eE]([+-]?[0-9]+)", suffix):
            return cls(number * Fraction(10) ** int(exponent[1]))
        raise ValueError("unable to parse quantity's suffix")

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
        return {"anyOf": [{"type": "number"}, {"type": "string", "pattern": _PATTERN.pattern}]}


def _from_json(value: Any, info: ValidationInfo) -> Quantity:
    if value is None and info.context and info.context.get(TOLERANT):
        return Quantity.decimal(0)  # The reference driver reads a null as zero.
    if isinstance(value, Quantity):
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise PydanticCustomError("quantity_type", "not a quantity")
    try:
        return Quantity.parse(value.strip(" ") if isinstance(value, str) else repr(value))
    except ValueError as error:
        raise PydanticCustomError("quantity", "{text}", {"text": str(error)}) from error


def _format(amount: Fraction, base: int, suffixes: dict[str, int], lowest: int) -> str:
    """Divide by `base` while the result is whole. Amounts below the lowest suffix round up."""
    whole = -(-amount.numerator // amount.denominator)
    by_power = {power: suffix for suffix, power in suffixes.items()}
    power = lowest if whole else 0
    while whole and whole % base == 0 and power < max(by_power):
        whole //= base
        power += 1
    return f"{whole}{by_power.get(power, '')}"
