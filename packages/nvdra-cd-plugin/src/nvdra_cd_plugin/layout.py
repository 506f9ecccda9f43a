"""What the node offers → the pool we publish (spec/compute-domain.md §7.5)."""

import re
from typing import Final

from nvdra_api.types.ids import DeviceName, NodeName, PoolName
from nvdra_api.types.slices import Attribute, Device, Pool, Slice

CHANNEL: Final = "channel"
DAEMON: Final = "daemon"
"""The kinds of our devices: attribute `type`, and the name up to the number."""


def pool(node: NodeName, *, is_usable: bool, is_host_managed: bool) -> Pool:
    """One pool named after the node: channel 0, and where daemons are ours, a place for one.

    Channels above 0 are never offered: a claim gets them with channel 0. While the node cannot be
    used, an empty slice says that we are alive.
    """
    kinds = (CHANNEL,) if is_host_managed else (CHANNEL, DAEMON)
    devices = tuple(map(_first, kinds)) if is_usable else ()
    return Pool(PoolName(node), (Slice(devices=devices),))


def number(device: str, kind: str) -> int | None:
    """N of a device `<kind>-N`; None for a device of another kind."""
    name, _, digits = device.partition("-")
    is_number = re.fullmatch("0|[1-9][0-9]{0,8}", digits) is not None
    return int(digits) if name == kind and is_number else None


def _first(kind: str) -> Device:
    return Device(
        name=DeviceName(f"{kind}-0"),
        attributes={"type": Attribute("string", kind), "id": Attribute("int", 0)},
    )
