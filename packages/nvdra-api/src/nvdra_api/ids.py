# SPDX-License-Identifier: Apache-2.0
"""Types for identifiers, so that a signature shows which string it expects."""

import re
from typing import Final, NewType

ClaimUID = NewType("ClaimUID", str)
"""UID of a ResourceClaim: a lower-case UUID with dashes."""

DomainUID = NewType("DomainUID", str)
"""UID of a ComputeDomain."""

PodUID = NewType("PodUID", str)
"""UID of a Pod."""

NodeName = NewType("NodeName", str)
"""Name of a Kubernetes node; also the name of the node's resource pool."""

PoolName = NewType("PoolName", str)
"""Name of a resource pool."""

DeviceName = NewType("DeviceName", str)
"""Name of a device in a pool: a DNS label such as `gpu-0`."""

GpuUUID = NewType("GpuUUID", str)
"""UUID of a GPU as NVML reports it: `GPU-` followed by a UUID."""

MigUUID = NewType("MigUUID", str)
"""UUID of a MIG device as NVML reports it: `MIG-` followed by a UUID."""

VfioUUID = NewType("VfioUUID", str)
"""UUID of a GPU as a vfio device: it follows from the PCI address, and has no prefix."""

DeviceUUID = GpuUUID | MigUUID | VfioUUID
"""UUID of a device: a GPU, a MIG device of one, or a GPU as a vfio device."""

PciAddress = NewType("PciAddress", str)
"""PCI address in lower case, `dddd:bb:dd.f`. It identifies a physical GPU on its node."""

CliqueID = NewType("CliqueID", str)
"""ID of an NVLink clique: `<cluster uuid>.<clique>`."""

TraceID = NewType("TraceID", str)
"""Trace ID: 32 lower-case hex digits, the UID of the traced object without dashes."""

SpanID = NewType("SpanID", str)
"""Span ID: 16 lower-case hex digits."""

_UID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_uid(text: str) -> bool:
    """Whether the text is a UID as the API server makes them.

    The UID becomes part of a path, so nothing else may be accepted.
    """
    return _UID.fullmatch(text) is not None
