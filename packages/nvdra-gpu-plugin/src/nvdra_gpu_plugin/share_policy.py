# SPDX-License-Identifier: Apache-2.0
"""How several claims may have one device at once: `--consumable-shares`, `--share-configs`. Pure.

Source: docs/reference/gpu-devices.md, "Consumable shares".
"""

from dataclasses import dataclass
from typing import Final

DISABLED: Final = "disabled"
_MEMORY: Final = "memory"
_UNLIMITED: Final = "unlimited"


@dataclass(frozen=True, slots=True)
class SharePolicy:
    """What a claim consumes of a device that others have, too.

    Attributes:
        is_by_memory: Whether a claim that does not ask for an amount of memory takes all of it;
            otherwise it takes none, as of everything else that it does not ask for.
        shares: Into how many equal shares each device is divided, of which a claim takes one or
            as many as it asks for; None if their number is not limited.
        is_configured_by_class: Whether only DeviceClasses say how a shared device divides its time.
    """

    is_by_memory: bool = False
    shares: int | None = None
    is_configured_by_class: bool = False


def parse(text: str) -> SharePolicy | None:
    """The policy that the option names; None if devices are not shared.

    Raises:
        ValueError: The text is none of the values.
    """
    value = text.strip()
    if value in ("", DISABLED):
        return None
    if value == _MEMORY:
        return SharePolicy(is_by_memory=True)
    if value == _UNLIMITED:
        return SharePolicy()
    if value.isascii() and value.isdigit() and int(value) > 0:
        return SharePolicy(shares=int(value))
    raise ValueError(
        f"{text!r} is not {DISABLED}, {_MEMORY}, {_UNLIMITED} or a number of shares such as 4"
    )
