# SPDX-License-Identifier: Apache-2.0
"""What claims of vfio devices need done, and which of them are refused without a look. Pure."""

from collections.abc import Iterator, Sequence

from nvdra_api.errors import PermanentError, Reason
from nvdra_api.ids import GpuUUID
from nvdra_api.resource.claims import ClaimRef, DeviceRequestAllocationResult
from nvdra_api.v1beta1 import VfioDeviceConfig
from nvdra_runtime.claims.opaque_configs import ConfiguredResult

from nvdra_gpu_plugin.cdi import vfio_edits
from nvdra_gpu_plugin.devices.inventory import Allocated, Inventory
from nvdra_gpu_plugin.devices.steps import BindVfio
from nvdra_gpu_plugin.devices.vfio_devices import VfioDevice
from nvdra_gpu_plugin.passthrough import boards


def check(
    claim: ClaimRef,
    result: DeviceRequestAllocationResult,
    device: VfioDevice,
    inventory: Inventory,
) -> None:
    """Check that a claim can have a vfio device. What the PCI bus says, `vfio_binding` checks.

    Raises:
        PermanentError: `InvalidConfig`: nobody can look at a device that only one can have.
            `VfioNotPossible`: its GPU is divided by MIG, and stays so.
    """
    if result.admin_access:
        raise PermanentError(
            Reason.INVALID_CONFIG,
            f"claim {claim}, request {result.request}: {device.name} cannot be monitored by "
            "admin access, as a virtual machine has it alone",
            "remove adminAccess from the request, or ask for admin access to GPUs and MIG devices "
            "only (deviceClassName)",
            claim=str(claim),
            device=device.name,
        )
    if any(gpu.pci == device.pci and not gpu.offers_whole for gpu in inventory.gpus):
        refusal = boards.mig_refusal(device.pci)
        raise PermanentError(
            Reason.VFIO_NOT_POSSIBLE,
            f"{device.name}: {refusal.message}",
            refusal.remedy,
            claim=str(claim),
            device=device.name,
        )


def bindings(
    configured: Sequence[ConfiguredResult], devices: Sequence[Allocated]
) -> Iterator[BindVfio]:
    """The GPUs that are bound to vfio.

    Raises:
        PermanentError: `InvalidConfig`: a virtual machine would need two back ends.
    """
    found = {
        device.name: (device, entry.config)
        for entry, device in zip(configured, devices, strict=True)
        if isinstance(device, VfioDevice) and isinstance(entry.config, VfioDeviceConfig)
    }
    if not found:
        return
    agreed = vfio_edits.agreed_config({name: config for name, (_, config) in found.items()})
    for device, _ in found.values():
        yield BindVfio(
            device=device.name,
            pci=device.pci,
            gpu=device.parent_uuid or GpuUUID(""),
            module=device.module,
            backend_policy=(agreed.iommu and agreed.iommu.backend_policy) or "",
            enable_api_device=bool(agreed.iommu and agreed.iommu.enable_api_device),
        )
