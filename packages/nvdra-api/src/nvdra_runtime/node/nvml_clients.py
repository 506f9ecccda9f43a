# SPDX-License-Identifier: Apache-2.0
"""How a GPU treats clients: whether it runs without any, and takes new ones.

A drained GPU keeps its clients and takes no new ones. A session that begins does not list it, so
it is named by its PCI address. The calls block. Source: NVML's reference, "Drain states";
docs/reference/nvml-simulator.md §6.3.
"""

from typing import Any, Final

from nvdra_api.ids import PciAddress

from nvdra_runtime.node.nvml import DeviceHandle, Nvml

_ON: Final = 1
"""`NVML_FEATURE_ENABLED`."""


def set_persistent(nvml: Nvml, gpu: DeviceHandle, *, is_on: bool) -> None:
    """Keep the GPU running without clients, or not.

    That is done by nvidia-persistenced, if its socket is at `/var/run` of this container, else by
    the kernel module until it is unloaded or lets go of the GPU.

    Raises:
        NvmlError: It is not possible or not allowed.
    """
    nvml.call("nvmlDeviceSetPersistenceMode", gpu.uuid, gpu.pointer, int(is_on))


def is_drained(nvml: Nvml, pci: PciAddress) -> bool:
    """Whether the driver takes no new clients of the GPU.

    Raises:
        NvmlError: The driver does not have the GPU (`NOT_FOUND`), or cannot say it.
    """
    info = _pci_info(nvml, pci)
    return bool(nvml.call("nvmlDeviceQueryDrainState", pci, info) == _ON)


def set_drained(nvml: Nvml, pci: PciAddress, *, is_on: bool) -> None:
    """Have the driver take no new clients of the GPU, or take them again.

    Raises:
        NvmlError: The driver does not have the GPU, cannot do it, or may not; `IN_USE`: the GPU is
            in persistence mode, or was drained in the meantime.
    """
    nvml.call("nvmlDeviceModifyDrainState", pci, _pci_info(nvml, pci), int(is_on))


def _pci_info(nvml: Nvml, pci: PciAddress) -> Any:
    domain, bus, rest = pci.split(":")
    info = nvml.call("nvmlPciInfo_t", pci, is_observed=False)  # a structure
    info.domain, info.bus = int(domain, 16), int(bus, 16)
    info.device = int(rest.partition(".")[0], 16)
    info.busIdLegacy = info.busId = pci.encode()
    return info
