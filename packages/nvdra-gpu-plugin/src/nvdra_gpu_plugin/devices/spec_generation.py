"""The generation of a node's CDI spec."""

from collections.abc import Mapping
from dataclasses import dataclass

from nvdra_api.ids import DeviceName


@dataclass(frozen=True, slots=True)
class SpecGeneration:
    """The CDI spec of this node's current driver and devices.

    Attributes:
        name: Hash of the spec's content; part of its file name and of every CDI device name.
        cdi_ids: Qualified CDI device name of each device.
    """

    name: str
    cdi_ids: Mapping[DeviceName, str]
