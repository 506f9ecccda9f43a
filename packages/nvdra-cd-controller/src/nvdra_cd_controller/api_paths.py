# SPDX-License-Identifier: Apache-2.0
"""Paths of the objects that the controller reads and writes."""

from collections.abc import Callable, Mapping
from typing import Final

from nvdra_api import names

_API: Final = f"/apis/{names.NVIDIA_API_VERSION}"
ALL_DOMAINS: Final = f"{_API}/computedomains"


def domain(namespace: str, name: str = "") -> str:
    """Path of the ComputeDomains of a namespace, or of one of them."""
    return f"{_API}/namespaces/{namespace}/computedomains" + (f"/{name}" if name else "")


def cliques(namespace: str, name: str = "") -> str:
    """Path of the ComputeDomainCliques of a namespace, or of one of them."""
    return f"{_API}/namespaces/{namespace}/computedomaincliques" + (f"/{name}" if name else "")


def daemonsets(namespace: str, name: str = "") -> str:
    """Path of the DaemonSets of a namespace, or of one of them."""
    return f"/apis/apps/v1/namespaces/{namespace}/daemonsets" + (f"/{name}" if name else "")


def network_policies(namespace: str, name: str = "") -> str:
    """Path of the NetworkPolicies of a namespace, or of one of them."""
    collection = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
    return collection + (f"/{name}" if name else "")


def pods(namespace: str) -> str:
    """Path of the pods of a namespace."""
    return f"/api/v1/namespaces/{namespace}/pods"


def events(namespace: str) -> str:
    """Path of the Events of a namespace."""
    return f"/api/v1/namespaces/{namespace}/events"


def nodes(name: str = "") -> str:
    """Path of all nodes, or of one of them."""
    return "/api/v1/nodes" + (f"/{name}" if name else "")


def definition(name: str) -> str:
    """Path of a CustomResourceDefinition."""
    return f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"


OF_CHILDREN: Final[Mapping[str, Callable[[str, str], str]]] = {
    "DaemonSet": daemonsets,
    "NetworkPolicy": network_policies,
}
"""By kind of child, except claim templates: those have several versions."""
