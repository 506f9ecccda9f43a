# SPDX-License-Identifier: Apache-2.0
"""Durations on the command line of Kubernetes components, in Go's syntax: `1m30s`."""

import re
from typing import Final

_UNITS_S: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|m|s|us|µs|ns)")


def parse_seconds(text: str) -> float:
    """Parse a duration into seconds: `1m30s` → 90.0, `500ms` → 0.5. `0` needs no unit.

    Raises:
        ValueError: The text is not a duration.
    """
    if text == "0":
        return 0.0
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError("must be a duration such as 15s, 1m30s or 500ms")
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts)
