"""Every string that Kubernetes, the kubelet or CDI knows us by.

Sources: spec/gpu-devices.md §1, spec/gpu-prepare.md §1, spec/kubelet-dra-protocol.md,
spec/api-and-webhook.md §1, spec/compute-domain.md §2.
"""

from typing import Final

from nvdra_api.types.ids import CliqueID, DomainUID

GPU_DRIVER: Final = "gpu.nvidia.com"
COMPUTE_DOMAIN_DRIVER: Final = "compute-domain.nvidia.com"

CONFIG_GROUP: Final = "resource.nvidia.com"
CONFIG_VERSION: Final = "v1beta1"
CONFIG_API_VERSION: Final = f"{CONFIG_GROUP}/{CONFIG_VERSION}"

RESOURCE_GROUP: Final = "resource.k8s.io"

GPU_CDI_VENDOR: Final = "k8s.gpu.nvidia.com"
GPU_CDI_DEVICE_KIND: Final = f"{GPU_CDI_VENDOR}/device"
"""Kind of the node-level spec: devices described once, when discovered."""

DOMAIN_CDI_VENDOR: Final = "k8s.compute-domain.nvidia.com"
DOMAIN_CDI_DEVICE_KIND: Final = f"{DOMAIN_CDI_VENDOR}/device"
"""Kind of the spec with the driver's files for daemons."""
DOMAIN_CDI_CLAIM_KIND: Final = f"{DOMAIN_CDI_VENDOR}/claim"
"""Kind of what one claim gets."""

DOMAIN_KIND: Final = "ComputeDomain"
CLIQUE_KIND: Final = "ComputeDomainClique"

DOMAIN_LABEL: Final = "resource.nvidia.com/computeDomain"
"""Label whose value is a domain's UID: on its nodes, children, pods and cliques."""
DOMAIN_FINALIZER: Final = DOMAIN_LABEL
"""On a domain, its DaemonSet and its claim templates; the reference uses one string for both."""
DOMAIN_TARGET_LABEL: Final = "resource.nvidia.com/computeDomainTarget"
"""On claim templates: `TARGET_DAEMON` or `TARGET_WORKLOAD`."""
TARGET_DAEMON: Final = "Daemon"
TARGET_WORKLOAD: Final = "Workload"
CLIQUE_LABEL: Final = "resource.nvidia.com/computeDomain.cliqueID"
"""Label whose value is a clique ID: on cliques and daemon pods; empty on a node without fabric."""

GPU_CLIQUE_LABEL: Final = "nvidia.com/gpu.clique"
"""Label of a node, where that is asked for: the NVLink clique of its GPUs."""

CHANNEL_CLASS: Final = "compute-domain-default-channel.nvidia.com"
"""Device class of a workload's IMEX channel."""
DAEMON_CLASS: Final = "compute-domain-daemon.nvidia.com"
"""Device class of the daemon's own claim."""

DAEMON_SERVICE_ACCOUNT: Final = "compute-domain-daemon-service-account"
"""What the daemon's pod runs as; the chart makes it in every managed namespace."""
DAEMON_CONTAINER: Final = "compute-domain-daemon"
"""Container of the daemon's pod; its claim and its program are named alike."""
IMEX_PORTS: Final = (50000, 50005)
"""Where nvidia-imex listens in the daemon's pod: for its peers, and for nvidia-imex-ctl."""

ATTRIBUTE_PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
ATTRIBUTE_PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
ATTRIBUTE_NUMA_NODE: Final = "resource.kubernetes.io/numaNode"

TRACEPARENT_ANNOTATION: Final = "tracing.k8s.io/traceparent"
"""W3C trace context that a user may put on a claim or its pod; it becomes a link."""
TRACE_ANNOTATION: Final = "nvdra.nvidia.com/trace-id"
"""On our Events: the trace to look up."""

DEFAULT_KUBELET_ROOT: Final = "/var/lib/kubelet"
DEFAULT_CDI_ROOT: Final = "/etc/cdi"


def daemon_name(uid: DomainUID) -> str:
    """Name of a domain's DaemonSet and of the template of its daemons' claims."""
    return f"computedomain-daemon-{uid}"


def clique_name(uid: DomainUID, clique: CliqueID) -> str:
    """Name of the ComputeDomainClique that holds a domain's daemons of one NVLink clique."""
    return f"{uid}.{clique}"
