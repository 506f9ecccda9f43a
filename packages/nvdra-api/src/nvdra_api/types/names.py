"""Every string that Kubernetes, the kubelet or CDI knows us by.

Sources: spec/gpu-devices.md §1, spec/gpu-prepare.md §1, spec/kubelet-dra-protocol.md,
spec/api-and-webhook.md §1.
"""

from typing import Final

GPU_DRIVER: Final = "gpu.nvidia.com"
COMPUTE_DOMAIN_DRIVER: Final = "compute-domain.nvidia.com"

CONFIG_GROUP: Final = "resource.nvidia.com"
CONFIG_VERSION: Final = "v1beta1"
CONFIG_API_VERSION: Final = f"{CONFIG_GROUP}/{CONFIG_VERSION}"

RESOURCE_GROUP: Final = "resource.k8s.io"

GPU_CDI_VENDOR: Final = "k8s.gpu.nvidia.com"
GPU_CDI_DEVICE_KIND: Final = f"{GPU_CDI_VENDOR}/device"
"""Kind of the node-level spec: devices described once, when discovered."""

ATTRIBUTE_PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
ATTRIBUTE_PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
ATTRIBUTE_NUMA_NODE: Final = "resource.kubernetes.io/numaNode"

TRACEPARENT_ANNOTATION: Final = "tracing.k8s.io/traceparent"
"""W3C trace context that a user may put on a claim or its pod; it becomes a link."""
TRACE_ANNOTATION: Final = "nvdra.nvidia.com/trace-id"
"""On our Events: the trace to look up."""

DEFAULT_KUBELET_ROOT: Final = "/var/lib/kubelet"
DEFAULT_CDI_ROOT: Final = "/etc/cdi"
