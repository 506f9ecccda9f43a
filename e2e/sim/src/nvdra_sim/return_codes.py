# SPDX-License-Identifier: Apache-2.0
"""The return codes of NVML by name and number: `GPU_IS_LOST`, `15`."""

from __future__ import annotations

import pynvml

_PREFIX = "NVML_ERROR_"
BY_NAME: dict[str, int] = {
    "SUCCESS": 0,
    **{
        key.removeprefix(_PREFIX): value
        for key, value in vars(pynvml).items()
        if key.startswith(_PREFIX) and isinstance(value, int)
    },
}
BY_NUMBER = {value: key for key, value in BY_NAME.items()}


def number(text: str) -> int:
    """Parses a name, with or without `NVML_ERROR_`, or a number. Raises ValueError."""
    if text.isdigit():
        return int(text)
    try:
        return BY_NAME[text.upper().removeprefix(_PREFIX)]
    except KeyError:
        known = ", ".join(sorted(BY_NAME))
        raise ValueError(f"{text!r} is not an NVML return code; known are {known}") from None


def name(code: int) -> str:
    """The name of a code, or its number if NVML has no name for it."""
    return BY_NUMBER.get(code, str(code))
