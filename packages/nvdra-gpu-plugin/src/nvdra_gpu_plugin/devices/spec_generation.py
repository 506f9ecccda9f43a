# SPDX-License-Identifier: Apache-2.0
"""The generation of a node's CDI spec."""

from collections.abc import Mapping
from dataclasses import dataclass

from nvdra_api.ids import DeviceName


@dataclass(frozen=True, slots=True)
class SpecGeneration:
    """The CDI spec of this node's current driver and devices.

    Attributes:
        name: The driver's version; part of the spec's file name. Releases up to 0.1.0 used a hash
            of the spec's content.
        cdi_ids: Qualified CDI device name of each device.
    """

    name: str
    cdi_ids: Mapping[DeviceName, str]
