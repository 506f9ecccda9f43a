# SPDX-License-Identifier: Apache-2.0
"""Names of the devices that this driver publishes: `channel-N` and `daemon-N`."""

import re
from typing import Final

CHANNEL: Final = "channel"
DAEMON: Final = "daemon"
"""The kinds of devices: the value of attribute `type`, and the name up to the number."""


def device_number(device: str, kind: str) -> int | None:
    """The N of a device `<kind>-N`; None for a device of another kind."""
    name, _, digits = device.partition("-")
    is_number = re.fullmatch("0|[1-9][0-9]{0,8}", digits) is not None
    return int(digits) if name == kind and is_number else None
