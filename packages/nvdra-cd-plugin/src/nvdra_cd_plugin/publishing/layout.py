# SPDX-License-Identifier: Apache-2.0
"""The pool that this node publishes.

Source: docs/reference/compute-domain.md, "Published devices".
"""

from nvdra_api.ids import DeviceName, NodeName, PoolName
from nvdra_api.resource.slices import Device, DeviceAttribute
from nvdra_runtime.resourceslices.pool import Pool, Slice

from nvdra_cd_plugin.node.device_names import CHANNEL, DAEMON


def pool(node: NodeName, *, is_usable: bool, is_host_managed: bool) -> Pool:
    """One pool with the node's name: channel 0 and, unless the host runs IMEX, daemon 0.

    Channels above 0 are never published: a claim gets them together with channel 0. While the
    node cannot be used, the pool has one empty slice, which shows that the driver runs.
    """
    kinds = (CHANNEL,) if is_host_managed else (CHANNEL, DAEMON)
    devices = tuple(map(_first_device, kinds)) if is_usable else ()
    return Pool(PoolName(node), (Slice(devices=devices),))


def _first_device(kind: str) -> Device:
    return Device(
        name=DeviceName(f"{kind}-0"),
        attributes={"type": DeviceAttribute(string_value=kind), "id": DeviceAttribute(int_value=0)},
    )
