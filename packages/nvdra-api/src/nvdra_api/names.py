# SPDX-License-Identifier: Apache-2.0
"""Names that Kubernetes, the kubelet and CDI know the driver by.

Sources: docs/reference/gpu-devices.md, "Identifiers and constants", docs/reference/gpu-prepare.md,
"Names and identifiers", docs/reference/kubelet-plugin.md, docs/reference/api-types.md, "Group,
kinds and registration", docs/reference/compute-domain.md, "Names and constants".
"""

import re
from typing import Final

from nvdra_api.ids import CliqueID, DomainUID

GPU_DRIVER: Final = "gpu.nvidia.com"
COMPUTE_DOMAIN_DRIVER: Final = "compute-domain.nvidia.com"

NVIDIA_GROUP: Final = "resource.nvidia.com"
"""API group of the opaque configs and of ComputeDomains."""
NVIDIA_VERSION: Final = "v1beta1"
NVIDIA_API_VERSION: Final = f"{NVIDIA_GROUP}/{NVIDIA_VERSION}"

RESOURCE_GROUP: Final = "resource.k8s.io"
"""API group of ResourceClaims and ResourceSlices."""

GPU_CDI_VENDOR: Final = "k8s.gpu.nvidia.com"
GPU_CDI_DEVICE_KIND: Final = f"{GPU_CDI_VENDOR}/device"
"""Kind of the node's CDI spec, which describes every GPU that was discovered."""
GPU_CDI_CLAIM_DEVICE_KIND: Final = f"{GPU_CDI_VENDOR}/claim-device"
"""Kind of the CDI specs of single claims, whose devices are made for them."""
GPU_CDI_CLAIM_KIND: Final = f"{GPU_CDI_VENDOR}/claim"
"""Kind of the reference driver's CDI specs, one for each claim."""
GPU_CDI_METADATA_KIND: Final = f"{GPU_DRIVER}/metadata"
"""Kind of the CDI specs that mount the device metadata of claims."""

DOMAIN_CDI_VENDOR: Final = "k8s.compute-domain.nvidia.com"
DOMAIN_CDI_DEVICE_KIND: Final = f"{DOMAIN_CDI_VENDOR}/device"
"""Kind of the CDI spec with the NVIDIA driver's files for IMEX daemons."""
DOMAIN_CDI_CLAIM_KIND: Final = f"{DOMAIN_CDI_VENDOR}/claim"
"""Kind of the CDI spec of a single claim."""

DOMAIN_KIND: Final = "ComputeDomain"
CLIQUE_KIND: Final = "ComputeDomainClique"

DOMAIN_LABEL: Final = "resource.nvidia.com/computeDomain"
"""Label with the UID of a ComputeDomain, on its nodes, child objects, pods and cliques."""
DOMAIN_FINALIZER: Final = DOMAIN_LABEL
"""Finalizer of a ComputeDomain, its DaemonSet and its claim templates.

The reference driver uses the same string for the label and the finalizer.
"""
DOMAIN_TARGET_LABEL: Final = "resource.nvidia.com/computeDomainTarget"
"""Label of claim templates with the value `TARGET_DAEMON` or `TARGET_WORKLOAD`."""
TARGET_DAEMON: Final = "Daemon"
TARGET_WORKLOAD: Final = "Workload"
CLIQUE_LABEL: Final = "resource.nvidia.com/computeDomain.cliqueID"
"""Label with a clique ID, on cliques and daemon pods. Empty on a node without NVLink fabric."""

GPU_CLIQUE_LABEL: Final = "nvidia.com/gpu.clique"
"""Optional node label with the NVLink clique of the node's GPUs."""

CHANNEL_CLASS: Final = "compute-domain-default-channel.nvidia.com"
"""DeviceClass of a workload's IMEX channel."""
DAEMON_CLASS: Final = "compute-domain-daemon.nvidia.com"
"""DeviceClass of an IMEX daemon's claim."""

DAEMON_NAME_PREFIX: Final = "computedomain-daemon-"
DAEMON_SERVICE_ACCOUNT: Final = "compute-domain-daemon-service-account"
"""ServiceAccount of the daemon pods. The chart creates it in every managed namespace."""
DAEMON_CONTAINER: Final = "compute-domain-daemon"
"""Name of the container in a daemon pod, of its claim and of its program."""
IMEX_PORTS: Final = (50000, 50005)
"""Ports on which nvidia-imex listens in a daemon pod: for its peers and for nvidia-imex-ctl."""

ATTRIBUTE_PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
ATTRIBUTE_PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
ATTRIBUTE_NUMA_NODE: Final = "resource.kubernetes.io/numaNode"

TRACEPARENT_ANNOTATION: Final = "tracing.k8s.io/traceparent"
"""Annotation with a W3C trace context that a user may set on a claim or its pod.

The trace of the claim links to it.
"""
RELEASE_NVML_ANNOTATION: Final = "gpu.nvidia.com/release-nvml"
"""Annotation of a Node by which an administrator has the GPU plugin give up NVML.

`true` until it is removed, or a time such as `15m`; with `,force` also while GPUs are in use.
"""
TRACE_ANNOTATION: Final = "nvdra.nvidia.com/trace-id"
"""Annotation with a trace ID, on Events that the driver writes."""
DOMAIN_SETTINGS_ANNOTATION: Final = "nvdra.nvidia.com/domain-settings"
"""Annotation of a ComputeDomain: the settings that all its daemons must share."""
DOMAIN_NAMESPACE_ANNOTATION: Final = "nvdra.nvidia.com/domain-namespace"
"""Annotation of a claim: the namespace of the ComputeDomain that its config names by UID."""
DOMAIN_NAME_ANNOTATION: Final = "nvdra.nvidia.com/domain-name"
"""Annotation of a claim: the name of that ComputeDomain."""
DAEMON_ANNOTATION: Final = "nvdra.nvidia.com/imex-daemon"
"""Annotation of a daemon's pod: what the daemon says of itself. The admission policy lets daemons
set annotations of their own pod that begin with `nvdra.nvidia.com/imex-`."""
LINKS_ANNOTATION: Final = "nvdra.nvidia.com/imex-links"
"""Annotation of a daemon's pod, with the nodes to which its nvidia-imex has no connection."""

MAX_NAME_LENGTH: Final = 253
"""Of an object, in characters."""
_DNS_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_SUBDOMAIN: Final = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*")

DEFAULT_KUBELET_ROOT: Final = "/var/lib/kubelet"
DEFAULT_CDI_ROOT: Final = "/etc/cdi"


def daemon_name(uid: DomainUID) -> str:
    """Return the name of a domain's DaemonSet and of the claim template of its daemons."""
    return f"{DAEMON_NAME_PREFIX}{uid}"


def clique_name(uid: DomainUID, clique: CliqueID) -> str:
    """Return the name of the ComputeDomainClique for a domain and an NVLink clique."""
    return f"{uid}.{clique}"


def is_dns_subdomain(text: str) -> bool:
    """Whether the text is a lowercase RFC 1123 subdomain, as the names of most objects are."""
    return len(text) <= MAX_NAME_LENGTH and _DNS_SUBDOMAIN.fullmatch(text) is not None
