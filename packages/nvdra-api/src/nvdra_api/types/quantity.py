"""Kubernetes quantities with exact integers: parse, compare, render as the API server does.

Source: spec/gpu-devices.md §9.2, spec/api-and-webhook.md §4.1.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import total_ordering

_SHAPE = re.compile(r"^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$")
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """An exact amount and the family of suffixes it is written with.

    Two quantities are equal when their amounts are: `1024Mi` == `1Gi`.
    """

    amount: Fraction
    is_binary: bool = False

    @classmethod
    def binary(cls, amount: int) -> "Quantity":
        """A whole number written with Ki, Mi, Gi, …: `42949672960` → `40Gi`."""
        return cls(Fraction(amount), is_binary=True)

    @classmethod
    def decimal(cls, amount: int) -> "Quantity":
        """A whole number written with k, M, G, …: `2000` → `2k`."""
        return cls(Fraction(amount))

    @classmethod
    def parse(cls, text: str) -> "Quantity":
        """Read what a user or the API server wrote.

        Raises:
            ValueError: with the API machinery's own sentence, which users know.
        """
        match = _SHAPE.match(text)
        if match is None or match[1].count(".") > 1 or not any(map(str.isdigit, match[1])):
            raise ValueError(f"quantities must match the regular expression '{_SHAPE.pattern}'")
        number, suffix = Fraction(match[1].rstrip(".")), match[2]
        if suffix in _BINARY:
            return cls(number * 1024 ** _BINARY[suffix], is_binary=True)
        if suffix in _DECIMAL:
            return cls(number * Fraction(1000) ** _DECIMAL[suffix])
        if exponent := re.fullmatch(r"[eE]([+-]?[0-9]+)", suffix):
            return cls(number * Fraction(10) ** int(exponent[1]))
        raise ValueError("unable to parse quantity's suffix")

    def __str__(self) -> str:
        """Canonical text: the largest suffix that leaves a whole number."""
        if self.is_binary and abs(self.amount) >= 1024 and self.amount.denominator == 1:
            return _scaled(self.amount, 1024, _BINARY, 0)
        return _scaled(self.amount * 10**9, 1000, _DECIMAL, -3)

    def __eq__(self, other: object) -> bool:
        return self.amount == other.amount if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: "Quantity") -> bool:
        return self.amount < other.amount

    def __hash__(self) -> int:
        return hash(self.amount)


def _scaled(amount: Fraction, step: int, suffixes: dict[str, int], lowest: int) -> str:
    """Divide by `step` while a whole number is left; finer than `lowest` rounds up, as they do."""
    whole = -(-amount.numerator // amount.denominator)
    by_power = {power: suffix for suffix, power in suffixes.items()}
    power = lowest if whole else 0
    while whole and whole % step == 0 and power < max(by_power):
        whole //= step
        power += 1
    return f"{whole}{by_power.get(power, '')}"
