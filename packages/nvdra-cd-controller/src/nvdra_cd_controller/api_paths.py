# SPDX-License-Identifier: Apache-2.0
"""Paths of the objects that the controller reads and writes."""

from collections.abc import Mapping
from typing import Final

from nvdra_api import names

_PLACES: Final[Mapping[str, tuple[str, str]]] = {
    names.DOMAIN_KIND: (f"/apis/{names.NVIDIA_API_VERSION}", "computedomains"),
    names.CLIQUE_KIND: (f"/apis/{names.NVIDIA_API_VERSION}", "computedomaincliques"),
    "DaemonSet": ("/apis/apps/v1", "daemonsets"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "Pod": ("/api/v1", "pods"),
    "Event": ("/api/v1", "events"),
    "Node": ("/api/v1", "nodes"),
    "CustomResourceDefinition": ("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
}
"""The API of each kind and its resource. Claim templates are not here: they have several APIs."""


def path(kind: str, namespace: str = "", name: str = "") -> str:
    """Path of all objects of a kind, of those in a namespace, or of the object of that name."""
    api, resource = _PLACES[kind]
    within = f"namespaces/{namespace}" if namespace else ""
    return "/".join(filter(None, (api, within, resource, name)))
