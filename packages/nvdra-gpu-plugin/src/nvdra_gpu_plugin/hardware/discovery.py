# SPDX-License-Identifier: Apache-2.0
"""Reads what a GPU is from NVML and sysfs (docs/reference/gpu-devices.md, "Discovery").

These calls block. Each GPU is queried on a thread of its own, so that one that hangs does not block
the others.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from nvdra_api.ids import GpuUUID, PciAddress
from nvdra_runtime.node import nvml_mig
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.nvml import DeviceHandle, Nvml

from nvdra_gpu_plugin.devices.gpu_numbers import MINORS_ONLY, GpuNumbers
from nvdra_gpu_plugin.devices.inventory import Gpu, MadePlaces
from nvdra_gpu_plugin.driver import installation
from nvdra_gpu_plugin.driver.nvml_sessions import DriverVersions
from nvdra_gpu_plugin.hardware import mig_discovery
from nvdra_gpu_plugin.hardware.mig_discovery import Instances, Listing
from nvdra_gpu_plugin.passthrough import pci_functions
from nvdra_gpu_plugin.passthrough.vfio_discovery import VfioDiscovery

ARCHITECTURES: Final = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
"""Published names of NVML's architecture ids. Any other id is published as `Unknown`."""

BRANDS: Final = (
    *("Unknown", "Quadro", "Tesla", "NVS", "Grid", "GeForce", "Titan", "NvidiaVApps"),
    *("NvidiaVPC", "NvidiaVCS", "NvidiaVWS", "NvidiaCloudGaming", "QuadroRTX", "NvidiaRTX"),
    *("Nvidia", "GeForceRTX", "TitanRTX"),
)
ADDRESSING_MODES: Final = ("None", "HMM", "ATS")
UNKNOWN: Final = "Unknown"

_DISPLAY_GPUS = frozenset({"DGX Display", "NVIDIA DGX Display"})
"""GPUs that only drive the screen of a DGX Station; they are not published."""

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


MadeForClaims = Callable[[GpuUUID], MadePlaces]
"""Where on a GPU MIG devices are made for claims. Called on the GPU's thread."""


class DiscoveredGpu(NamedTuple):
    """A GPU and the handles of the session.

    Attributes:
        mig_devices: Its MIG devices as NVML lists them, to notice that they have changed.
        instances: Its GPU instances, for the same.
        partitions_problem: Why nothing can be made on it until it is asked again; empty if there is
            no problem.
    """

    gpu: Gpu
    handle: DeviceHandle
    mig_devices: Listing
    instances: Instances = frozenset()
    partitions_problem: str = ""


@dataclass(frozen=True)
class Discovery:
    """Reads what the GPUs of one node are.

    Attributes:
        host: Where procfs and sysfs are.
        numbers: The numbers in the names of GPUs.
        made_on: Where on a GPU MIG devices are made for claims.
        finds_partitions: Whether MIG devices can be made for claims (`DynamicMIG`).
        vfio: Finds GPUs for virtual machines (`PassthroughSupport`).
    """

    host: Host
    numbers: GpuNumbers = MINORS_ONLY
    made_on: MadeForClaims = lambda _: frozenset()
    finds_partitions: bool = False
    vfio: VfioDiscovery | None = None

    def describe(
        self,
        nvml: Nvml,
        index: int,
        versions: DriverVersions,
        known: Gpu | None = None,
        handle: DeviceHandle | None = None,
    ) -> DiscoveredGpu | None:
        """Describe one GPU of the node. Returns None for one that only drives a screen.

        What cannot change is not asked again of a GPU that is `known`. Its index is its position in
        the order of PCI addresses; a GPU that leaves the bus may change that of others, but not
        their handles.

        Raises:
            NvmlError: A call failed.
            ValueError: NVML returned an invalid value.
        """
        if handle is None:
            handle = nvml.handle_by_index(index)
        if nvml.name(handle) in _DISPLAY_GPUS:
            return None
        gpu = _describe(nvml, handle, self.host, versions)
        number = self.numbers.number(gpu.uuid, gpu.minor)
        if number != gpu.minor:
            gpu = replace(gpu, other_number=number)
        problem = ""
        if self.finds_partitions:
            partitions, problem = mig_discovery.describe_partitions(nvml, gpu, handle, known)
            if partitions and (missing := installation.capabilities_problem(self.host)):
                partitions, problem = (), missing
            gpu = replace(gpu, partitions=partitions)
        if not gpu.is_mig_enabled:
            return DiscoveredGpu(gpu, handle, {}, partitions_problem=problem)
        instances = mig_discovery.list_instances(nvml, gpu, handle)
        listed = nvml_mig.list_devices(nvml, handle)
        described = mig_discovery.describe_devices(nvml, gpu, handle, listed)
        found = mig_discovery.with_instances(gpu, described, instances)
        return DiscoveredGpu(found, handle, listed, instances, problem)

    def expected_number(self, pci: PciAddress) -> int | None:
        """The number in a GPU's name before it is described; None if files do not say it."""
        facts = installation.gpu_facts(self.host, pci)
        if facts.minor is None or facts.uuid is None:
            return facts.minor
        return self.numbers.number(facts.uuid, facts.minor)


def _describe(nvml: Nvml, handle: DeviceHandle, host: Host, versions: DriverVersions) -> Gpu:
    pci = nvml.pci_bus_id(handle)
    if not _PCI_ADDRESS.fullmatch(pci):
        raise ValueError(f"{handle.uuid}: {pci} is not a PCI address of 16 bits of domain")
    major, minor = nvml.compute_capability(handle)
    mode = nvml.addressing_mode(handle)
    return Gpu(
        uuid=handle.uuid,
        minor=nvml.minor_number(handle),
        pci=pci,
        product_name=nvml.name(handle),
        brand=_name_of(BRANDS, nvml.brand(handle)),
        architecture=ARCHITECTURES.get(nvml.architecture(handle), UNKNOWN),
        compute_capability=f"{major}.{minor}",
        driver_version=versions.driver,
        cuda_driver_version=versions.cuda,
        memory_bytes=nvml.memory_total_bytes(handle),
        addressing_mode=None if mode is None else _name_of(ADDRESSING_MODES, mode),
        numa_node=pci_functions.numa_node(host, pci),
        pcie_root=pci_functions.pcie_root(host, pci),
        is_mig_enabled=nvml.is_mig_enabled(handle),
    )


def _name_of(names: tuple[str, ...], number: int) -> str:
    return names[number] if 0 <= number < len(names) else UNKNOWN
