# SPDX-License-Identifier: Apache-2.0
"""What the pages of docs/configuration say of gates, attributes and capacities.

`document_configuration` writes the pages and fails if a text is missing here.
"""

from collections.abc import Mapping
from typing import Final

from nvdra_api.gates import Feature
from nvdra_api.names import ATTRIBUTE_NUMA_NODE, ATTRIBUTE_PCI_BUS_ID, ATTRIBUTE_PCIE_ROOT

GATES: Final[Mapping[Feature, str]] = {
    Feature.TIME_SLICING: "A claim of whole GPUs may say how long the time slices of its processes "
    "are.",
    Feature.MPS: "The processes of a claim may share its GPUs, or its MIG devices, by MPS. The "
    "GPU plugin runs a control daemon for each such claim.",
    Feature.IMEX_DNS_NAMES: "IMEX daemons find each other by name, so that a member that comes "
    "back with another address interrupts nobody.",
    Feature.PASSTHROUGH: "GPUs for virtual machines, by VFIO.",
    Feature.DYNAMIC_MIG: "Every MIG device that a GPU can have is offered beside the whole GPU. "
    "It is made when its claim is prepared and destroyed when the claim is released.",
    Feature.HEALTH_CHECK: "GPUs that need a recovery get a taint, and the status of the pods that "
    "use them says so.",
    Feature.CLIQUES: "Members of a ComputeDomain are kept in ComputeDomainClique objects, one for "
    "each NVLink clique, instead of the domain's status.",
    Feature.CRASH_ON_FABRIC_ERRORS: "A node whose GPUs have not joined their NVLink fabric offers "
    "no channel and says why; without the gate it counts as a node without fabric. The reference "
    "driver, which has the name, ends instead.",
    Feature.DEVICE_METADATA: "Each container finds a file that describes the devices of its "
    "claims.",
    Feature.LIST_ATTRIBUTES: "`numaNode` is published as a list with one element. Needs the gate "
    "of the same name of Kubernetes.",
    Feature.FABRIC_PARTITIONING: "GPUs of one Fabric Manager partition can be asked for together.",
    Feature.HOST_MANAGED_IMEX: "The hosts run nvidia-imex (`--imex-mode=hostManaged`), and nvdra "
    "runs no daemons.",
    Feature.CONSUMABLE_SHARES: "A device may be given to several claims at once, as "
    "`--consumable-shares` says.",
    Feature.CONTEXTUAL_LOGGING: "A gate of all Kubernetes components. Log records always have "
    "their context.",
    Feature.LOGGING_ALPHA: "A gate of all Kubernetes components.",
    Feature.LOGGING_BETA: "A gate of all Kubernetes components.",
}
"""What each gate is for."""

ATTRIBUTES: Final[Mapping[str, str]] = {
    "type": "Kind of device",
    "uuid": "UUID as NVML reports it; not for a MIG device that does not exist yet",
    "parentUUID": "UUID of the GPU of a MIG device",
    "profile": "MIG profile",
    "migProfile": "The same as `profile`, for selectors that were written for another driver",
    "productName": "Name of the product, as NVML reports it",
    "brand": "Brand",
    "architecture": "Architecture",
    "cudaComputeCapability": "CUDA compute capability, as a version",
    "driverVersion": "Version of NVIDIA's driver, without leading zeros",
    "cudaDriverVersion": "Newest CUDA version that this driver supports",
    "addressingMode": "`HMM`, `ATS` or `None`; where NVML can tell",
    "pcieBusID": "The same as the standard attribute, for older selectors",
    ATTRIBUTE_PCI_BUS_ID: "PCI address",
    ATTRIBUTE_PCIE_ROOT: "PCIe root complex; devices with the same value are near each other",
    ATTRIBUTE_NUMA_NODE: "NUMA node; where the kernel knows one",
    "id": "Number of the channel or daemon; 0",
}
"""What each attribute means."""

CAPACITIES: Final[Mapping[str, str]] = {
    "memory": "Memory in bytes",
    "multiprocessors": "Streaming multiprocessors",
    "copyEngines": "Copy engines",
    "decoders": "Video decoders",
    "encoders": "Video encoders",
    "jpegEngines": "JPEG engines",
    "ofaEngines": "Optical flow engines",
}
"""What each capacity means."""
