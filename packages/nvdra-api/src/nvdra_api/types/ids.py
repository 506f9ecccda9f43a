"""Identifiers, so that a signature says which string it wants."""

from typing import NewType

ClaimUID = NewType("ClaimUID", str)
"""UID of a ResourceClaim: lower-case UUID text with dashes."""

DomainUID = NewType("DomainUID", str)
"""UID of a ComputeDomain."""

PodUID = NewType("PodUID", str)
"""UID of a Pod."""

NodeName = NewType("NodeName", str)
"""Kubernetes node name; also the name of the node's pool."""

PoolName = NewType("PoolName", str)
"""Name of a pool of devices."""

DeviceName = NewType("DeviceName", str)
"""Name of a device in a pool, a DNS label such as `gpu-0`."""

GpuUUID = NewType("GpuUUID", str)
"""What NVML calls a board: `GPU-` and a UUID."""

PciAddress = NewType("PciAddress", str)
"""PCI address, lower case, `dddd:bb:dd.f`: the key of everything that is per physical GPU."""

CliqueID = NewType("CliqueID", str)
"""NVLink clique: `<cluster uuid>.<clique>`."""

TraceID = NewType("TraceID", str)
"""Trace ID: 32 lower-case hex digits, the UID of the object without dashes."""

SpanID = NewType("SpanID", str)
"""Span ID: 16 lower-case hex digits."""
