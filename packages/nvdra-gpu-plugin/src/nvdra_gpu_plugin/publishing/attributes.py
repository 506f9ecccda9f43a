# SPDX-License-Identifier: Apache-2.0
"""Attributes and capacities of published GPUs, MIG devices and vfio devices, for selectors.

Keys without a domain belong to the driver: `device.attributes['gpu.nvidia.com'].productName`.

Source: docs/reference/gpu-devices.md, "Attributes", "Capacities".
"""

import re
from collections.abc import Iterable, Mapping

from nvdra_api import names
from nvdra_api.quantity import Quantity
from nvdra_api.resource.slices import DeviceAttribute, DeviceCapacity

from nvdra_gpu_plugin.devices.inventory import Gpu, MigDevice
from nvdra_gpu_plugin.devices.mig_profiles import MigProfile
from nvdra_gpu_plugin.devices.vfio_devices import VfioDevice

_MAX_VALUE_BYTES = 64
"""Longest string or version that the API server accepts."""

_MOST_ATTRIBUTES_AND_CAPACITIES = 32
"""Of one device; the API server's limit for both together."""

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
    return _known(
        {
            "type": _string_attribute(gpu.kind),
            "uuid": _string_attribute(gpu.uuid),
            **_of_gpu(gpu, numa_as_list=numa_as_list),
        }
    )


def mig_device(
    mig: MigDevice, parent: Gpu, *, numa_as_list: bool = False
) -> dict[str, DeviceAttribute]:
    """The attributes of a MIG device. Most are those of its GPU.

    Args:
        mig: The MIG device.
        parent: Its GPU.
        numa_as_list: As for `whole_gpu`.
    """
    return _known(
        {
            "uuid": _string_attribute(mig.uuid),
            **_of_parent(parent),
            **_of_profile(mig.profile_name),
            **_of_gpu(parent, numa_as_list=numa_as_list),
        }
    )


def vfio_device(device: VfioDevice, *, numa_as_list: bool = False) -> dict[str, DeviceAttribute]:
    """The attributes of a GPU as a vfio device.

    None of them is `mdevUUID`, by which KubeVirt takes a device for a mediated one, and none names
    the driver that has the GPU now. `productName` is of the PCI id database, as the reference
    publishes it; what NVML calls the GPU is in `parentProductName`.

    Args:
        device: The vfio device.
        numa_as_list: As for `whole_gpu`.

    Source: docs/reference/gpu-devices.md, "Attributes of a VFIO device".
    """
    return _known(
        {
            "type": _string_attribute(device.kind),
            "uuid": _string_attribute(device.uuid),
            "deviceID": _string_attribute(f"0x{device.device_id:04x}"),
            "vendorID": _string_attribute(f"0x{device.vendor_id:04x}"),
            "productName": _string_attribute(device.product_name),
            "iommuFDEnabled": DeviceAttribute(bool_value=device.has_iommufd),
            "iommuGroup": _int_attribute(device.iommu_group),
            "isolated": DeviceAttribute(bool_value=device.is_isolated),
            "parentUUID": _string_attribute(device.parent_uuid),
            "parentProductName": _string_attribute(device.parent_product_name),
            names.ATTRIBUTE_PCI_BUS_ID: _string_attribute(device.pci),
            names.ATTRIBUTE_PCIE_ROOT: _string_attribute(device.pcie_root),
            names.ATTRIBUTE_NUMA_NODE: _numa_attribute(device.numa_node, as_list=numa_as_list),
        }
    )


def partitions(
    parent: Gpu, profiles: Iterable[str], *, numa_as_list: bool = False
) -> dict[str, dict[str, DeviceAttribute]]:
    """The attributes of MIG devices that can be made, by profile. They have no UUID before.

    Args:
        parent: The GPU.
        profiles: The names of their profiles.
        numa_as_list: As for `whole_gpu`.
    """
    common = _known({**_of_parent(parent), **_of_gpu(parent, numa_as_list=numa_as_list)})
    return {profile: {**common, **_known(_of_profile(profile))} for profile in profiles}


def whole_gpu_capacity(gpu: Gpu) -> dict[str, DeviceCapacity]:
    """The capacity of a whole GPU: `memory` in bytes, if NVML reports it."""
    if gpu.memory_bytes is None:
        return {}
    return {"memory": DeviceCapacity(value=Quantity.binary(gpu.memory_bytes))}


def vfio_capacity(device: VfioDevice) -> dict[str, DeviceCapacity]:
    """The capacity of a vfio device: `addressableMemory` in bytes, what a guest maps of it."""
    return {"addressableMemory": DeviceCapacity(value=Quantity.binary(device.memory_bytes))}


def mig_capacity(mig: MigDevice, attribute_count: int) -> dict[str, DeviceCapacity]:
    """The capacity of a MIG device: engines, memory in bytes, and its memory slices.

    Args:
        mig: The MIG device.
        attribute_count: How many attributes it has. If attributes and capacities exceed the API
            server's limit together, all memory slices are left out: a device with so many of them
            is the whole of a large GPU.
    """
    amounts = profile_amounts(mig.profile) | {"multiprocessors": mig.multiprocessors}
    first, size = mig.placement.start, mig.placement.size
    if attribute_count + len(amounts) + size <= _MOST_ATTRIBUTES_AND_CAPACITIES:
        amounts |= {f"memorySlice{number}": 1 for number in range(first, first + size)}
    return capacity(amounts)


def profile_amounts(profile: MigProfile) -> dict[str, int]:
    """What a GPU instance of a profile has, memory in bytes, by the name of the capacity."""
    return {
        "multiprocessors": profile.multiprocessors,
        "copyEngines": profile.copy_engines,
        "decoders": profile.decoders,
        "encoders": profile.encoders,
        "jpegEngines": profile.jpeg_engines,
        "ofaEngines": profile.ofa_engines,
        "memory": profile.memory_bytes,
    }


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


def _of_parent(parent: Gpu) -> dict[str, DeviceAttribute | None]:
    """What all MIG devices of a GPU have, whether they exist or can be made."""
    return {"type": _string_attribute("mig"), "parentUUID": _string_attribute(parent.uuid)}


def _of_profile(profile: str) -> dict[str, DeviceAttribute | None]:
    # The second one is a copy for selectors that were written for another driver.
    return {"profile": _string_attribute(profile), "migProfile": _string_attribute(profile)}


def _of_gpu(gpu: Gpu, *, numa_as_list: bool) -> dict[str, DeviceAttribute | None]:
    """What a GPU and its MIG devices have in common."""
    return {
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


def capacity(amounts: Mapping[str, int]) -> dict[str, DeviceCapacity]:
    """Capacities by their names; memory in bytes."""
    return {name: DeviceCapacity(value=Quantity.binary(amount)) for name, amount in amounts.items()}


def _known(attributes: Mapping[str, DeviceAttribute | None]) -> dict[str, DeviceAttribute]:
    return {key: value for key, value in attributes.items() if value is not None}


def _string_attribute(value: str | None) -> DeviceAttribute | None:
    if not value or len(value.encode()) > _MAX_VALUE_BYTES:
        return None
    return DeviceAttribute(string_value=value)


def _int_attribute(value: int | None) -> DeviceAttribute | None:
    return None if value is None else DeviceAttribute(int_value=value)


def _numa_attribute(node: int | None, *, as_list: bool) -> DeviceAttribute | None:
    if node is None:
        return None
    return DeviceAttribute(int_values=(node,)) if as_list else DeviceAttribute(int_value=node)
