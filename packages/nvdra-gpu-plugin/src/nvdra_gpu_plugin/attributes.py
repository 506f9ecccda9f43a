"""Inventory → the attributes and capacities that users select on (spec/gpu-devices.md §§8, 9).

Keys without a domain belong to the driver: `device.attributes['gpu.nvidia.com'].productName`.
"""

import re

from nvdra_api.types import names
from nvdra_api.types.quantity import Quantity
from nvdra_api.types.slices import Attribute

from nvdra_gpu_plugin.inventory import Gpu

_LIMIT_BYTES = 64
"""Longest string or version value the API server takes."""

_LOOSE_VERSION = re.compile(
    r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(-[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
    r"(\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)


def whole_gpu(gpu: Gpu, *, numa_as_list: bool = False) -> dict[str, Attribute]:
    """The attributes of a whole GPU; what the hardware does not tell is left out.

    Args:
        gpu: The board.
        numa_as_list: Publish `numaNode` as a list of one, for the gate `DRAListTypeAttributes`.
    """
    found: dict[str, Attribute | None] = {
        "type": _string("gpu"),
        "uuid": _string(gpu.uuid),
        "productName": _string(gpu.product_name),
        "brand": _string(gpu.brand),
        "architecture": _string(gpu.architecture),
        "cudaComputeCapability": version(gpu.compute_capability),
        "driverVersion": version(gpu.driver_version),
        "cudaDriverVersion": version(gpu.cuda_driver_version),
        "addressingMode": _string(gpu.addressing_mode),
        # The standard key for alignment with other drivers' devices, and a copy in our own domain
        # for selectors that predate it.
        "pcieBusID": _string(gpu.pci),
        names.ATTRIBUTE_PCI_BUS_ID: _string(gpu.pci),
        names.ATTRIBUTE_PCIE_ROOT: _string(gpu.pcie_root),
        names.ATTRIBUTE_NUMA_NODE: _numa(gpu.numa_node, as_list=numa_as_list),
    }
    return {key: value for key, value in found.items() if value is not None}


def whole_gpu_capacity(gpu: Gpu) -> dict[str, Quantity]:
    """What a whole GPU has to give: `memory` in bytes, where NVML tells it."""
    return {} if gpu.memory_bytes is None else {"memory": Quantity.binary(gpu.memory_bytes)}


def version(text: str) -> Attribute | None:
    """A driver's or CUDA's version as strict semver; None where it has no such form.

    `580.126.09` → `580.126.9`, `9.0` → `9.0.0`. A four-part version does not parse: better no
    attribute than a slice that the API server rejects (spec/gpu-devices.md §8.4).
    """
    match = _LOOSE_VERSION.fullmatch(text)
    if match is None:
        return None
    numbers = ".".join(str(int(part or 0)) for part in match.groups()[:3])
    canonical = f"{numbers}{match[4] or ''}{match[5] or ''}"
    return Attribute("version", canonical) if len(canonical) <= _LIMIT_BYTES else None


def _string(value: str | None) -> Attribute | None:
    if not value or len(value.encode()) > _LIMIT_BYTES:
        return None
    return Attribute("string", value)


def _numa(node: int | None, *, as_list: bool) -> Attribute | None:
    if node is None:
        return None
    return Attribute("ints", (node,)) if as_list else Attribute("int", node)
