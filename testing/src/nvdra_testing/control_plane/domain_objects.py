# SPDX-License-Identifier: Apache-2.0
"""CRDs and JSON objects of ComputeDomains for a real API server.

No kubelet and no scheduler is there; tests write what the daemons would write.
"""

import contextlib
import time
import urllib.error
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from nvdra_cd_controller.crds import definitions

from nvdra_testing.control_plane.apiserver import ApiServer

API = "/apis/resource.nvidia.com/v1beta1"
CLIQUE = "2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2"
CRD_TIMEOUT_S = 60

Json = dict[str, Any]


def install_crds(server: ApiServer) -> None:
    """Install both CRDs, as the controller does, and wait until they are served."""
    for definition in definitions.own():
        install_crd(server, definition.document)


def install_crd(server: ApiServer, definition: Json) -> None:
    """Install one CRD, and wait until its objects are served."""
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    made = server.create(definitions, definition)
    wait_served(server, made["spec"]["names"]["plural"])


def wait_served(server: ApiServer, plural: str) -> None:
    """Wait until the objects of a CRD can be listed."""
    until = time.monotonic() + CRD_TIMEOUT_S
    while not _is_served(server, plural):
        assert time.monotonic() < until, f"{plural} were never served"
        time.sleep(0.05)


def _is_served(server: ApiServer, plural: str) -> bool:
    try:
        server.request("GET", f"{API}/{plural}")
    except urllib.error.HTTPError:
        return False
    return True


def remove_all_domains(server: ApiServer) -> None:
    """Delete the domains and cliques of all namespaces, whatever finalizers they have."""
    for plural in ("computedomains", "computedomaincliques"):
        for each in server.request("GET", f"{API}/{plural}")["items"]:
            namespace = each["metadata"]["namespace"]
            remove_by_force(server, f"{API}/namespaces/{namespace}/{plural}", each)


def remove_by_force(server: ApiServer, path: str, found: Json) -> None:
    """Remove an object of the list at this path together with its finalizers."""
    metadata = {**found["metadata"], "finalizers": []}
    one = f"{path}/{metadata['name']}"
    with contextlib.suppress(urllib.error.HTTPError):  # it may be going
        server.request("PUT", one, {**found, "metadata": metadata})
        server.request("DELETE", one)


def create_namespace(server: ApiServer, prefix: str = "team") -> str:
    """Create a new namespace, and return its name."""
    name = f"{prefix}-{uuid4().hex[:8]}"
    server.create("/api/v1/namespaces", {"metadata": {"name": name}})
    return name


def domain(name: str = "ring", template: str = "", **spec: Any) -> Json:
    """A ComputeDomain as a user writes it; the default template is `<name>-channel`."""
    channel = {"resourceClaimTemplate": {"name": template or f"{name}-channel"}}
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": name},
        "spec": {"channel": channel, **spec},
    }


def claim_annotations(domain: Mapping[str, Any], **other: str) -> dict[str, str]:
    """What the controller's templates annotate a domain's claims with, or `other` values of it."""
    said = {key: domain["metadata"][key] for key in ("namespace", "name")}
    return {f"nvdra.nvidia.com/domain-{key}": text for key, text in {**said, **other}.items()}


def daemonset_pod_spec(node: str) -> Json:
    """The spec of a DaemonSet pod for this node before it is scheduled."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": required}}


def unschedulable_pod_status(message: str) -> Json:
    """The status of a pod that cannot be scheduled."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
    }
    return {"phase": "Pending", "conditions": [condition]}


def image_pull_backoff_status(message: str) -> Json:
    """The status of a pod whose image cannot be pulled."""
    container = {
        "name": "c",
        "image": "i",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": message}},
    }
    return {"phase": "Pending", "containerStatuses": [container]}


def domains_path(namespace_: str, name: str = "") -> str:
    """The path of the domains in a namespace, or of one domain."""
    return f"{API}/namespaces/{namespace_}/computedomains" + (f"/{name}" if name else "")


def cliques_path(namespace_: str, name: str = "") -> str:
    """The path of the cliques in a namespace, or of one clique."""
    return f"{API}/namespaces/{namespace_}/computedomaincliques" + (f"/{name}" if name else "")


def clique_entry(node: str, index: int, status: str = "Ready", **more: Any) -> Json:
    """An entry that a daemon writes about itself."""
    address = f"10.4.{index // 250}.{index % 250 + 1}"
    return {
        "nodeName": node,
        "ipAddress": address,
        "cliqueID": CLIQUE,
        "index": index,
        "status": status,
        **more,
    }


def clique(uid: str, *entries: Mapping[str, Any], clique_id: str = CLIQUE) -> Json:
    """A clique with the entries of daemons."""
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomainClique",
        "metadata": {
            "name": f"{uid}.{clique_id}",
            "labels": {
                "resource.nvidia.com/computeDomain": uid,
                "resource.nvidia.com/computeDomain.cliqueID": clique_id,
            },
        },
        "daemons": list(entries),
    }
