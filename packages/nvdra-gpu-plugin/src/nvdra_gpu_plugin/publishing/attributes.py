"""Attributes and capacities of published GPUs, for selectors.

Keys without a domain belong to the driver: `device.attributes['gpu.nvidia.com'].productName`.

Source: docs/reference/gpu-devices.md, "Attributes", "Capacities".
"""

import re

from nvdra_api import names
from nvdra_api.quantity import Quantity
from nvdra_api.resource.slices import DeviceAttribute, DeviceCapacity

from nvdra_gpu_plugin.devices.inventory import Gpu

_MAX_VALUE_BYTES = 64
"""Longest string or version that the API server accepts."""

_LOOSE_VERSION = re.compile(
    r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(-[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
    r"(\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)


def whole_gpu(gpu: Gpu, *, numa_as_list: bool = False) -> dict[str, DeviceAttribute]:
    """The attributes of a whole GPU. Unknown values are omitted.

    Args:
        gpu: The GPU.
        numa_as_list: Publish `numaNode` as a list with one element, for the gate
            `DRAListTypeAttributes`.
    """
    found: dict[str, DeviceAttribute | None] = {
        "type": _string_attribute("gpu"),
        "uuid": _string_attribute(gpu.uuid),
        "productName": _string_attribute(gpu.product_name),
        "brand": _string_attribute(gpu.brand),
        "architecture": _string_attribute(gpu.architecture),
        "cudaComputeCapability": semver_attribute(gpu.compute_capability),
        "driverVersion": semver_attribute(gpu.driver_version),
        "cudaDriverVersion": semver_attribute(gpu.cuda_driver_version),
        "addressingMode": _string_attribute(gpu.addressing_mode),
        # The standard key aligns GPUs with other drivers' devices. The copy in this driver's domain
        # is for selectors that are older than the standard key.
        "pcieBusID": _string_attribute(gpu.pci),
        names.ATTRIBUTE_PCI_BUS_ID: _string_attribute(gpu.pci),
        names.ATTRIBUTE_PCIE_ROOT: _string_attribute(gpu.pcie_root),
        names.ATTRIBUTE_NUMA_NODE: _numa_attribute(gpu.numa_node, as_list=numa_as_list),
    }
    return {key: value for key, value in found.items() if value is not None}


def whole_gpu_capacity(gpu: Gpu) -> dict[str, DeviceCapacity]:
    """The capacity of a whole GPU: `memory` in bytes, if NVML reports it."""
    if gpu.memory_bytes is None:
        return {}
    return {"memory": DeviceCapacity(value=Quantity.binary(gpu.memory_bytes))}


def semver_attribute(text: str) -> DeviceAttribute | None:
    """A version as strict semver: `580.126.09` → `580.126.9`, `9.0` → `9.0.0`.

    None if this is not possible, as with four numbers. The API server would reject the whole slice
    (docs/reference/gpu-devices.md, "Version normalisation").
    """
    match = _LOOSE_VERSION.fullmatch(text)
    if match is None:
        return None
    numbers = ".".join(str(int(part or 0)) for part in match.groups()[:3])
    canonical = f"{numbers}{match[4] or ''}{match[5] or ''}"
    return DeviceAttribute(version_value=canonical) if len(canonical) <= _MAX_VALUE_BYTES else None


def _string_attribute(value: str | None) -> DeviceAttribute | None:
    if not value or len(value.encode()) > _MAX_VALUE_BYTES:
        return None
    return DeviceAttribute(string_value=value)


def _numa_attribute(node: int | None, *, as_list: bool) -> DeviceAttribute | None:
    if node is None:
        return None
    return DeviceAttribute(int_values=(node,)) if as_list else DeviceAttribute(int_value=node)
