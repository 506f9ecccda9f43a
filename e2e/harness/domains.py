"""ComputeDomains on a real API server: their definitions, objects to send, a namespace apart.

What the daemons would write, tests write; no kubelet and no scheduler is there.
"""

import time
import urllib.error
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml
from apiserver import ApiServer

CRDS = Path(__file__).parents[2] / "charts" / "nvdra-cd-controller" / "files" / "crds"
API = "/apis/resource.nvidia.com/v1beta1"
CLIQUE = "2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2"
ESTABLISHED_S = 20

Json = dict[str, Any]


def define(server: ApiServer) -> None:
    """Install both definitions, as the chart does, and wait until they are served."""
    for path in sorted(CRDS.glob("*.yaml")):
        establish(server, yaml.safe_load(path.read_text()))


def establish(server: ApiServer, definition: Json) -> None:
    """Install one definition, and wait until its objects are served."""
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    made = server.create(definitions, definition)
    wait_served(server, made["spec"]["names"]["plural"])


def wait_served(server: ApiServer, plural: str) -> None:
    """Until objects of a definition can be listed."""
    until = time.monotonic() + ESTABLISHED_S
    while not _is_served(server, plural):
        assert time.monotonic() < until, f"{plural} were never served"
        time.sleep(0.05)


def _is_served(server: ApiServer, plural: str) -> bool:
    try:
        server.call("GET", f"{API}/{plural}")
    except urllib.error.HTTPError:
        return False
    return True


def namespace(server: ApiServer, prefix: str = "team") -> str:
    """Make a namespace that nothing else uses; its name."""
    name = f"{prefix}-{uuid4().hex[:8]}"
    server.create("/api/v1/namespaces", {"metadata": {"name": name}})
    return name


def domain(name: str = "ring", template: str = "", **spec: Any) -> Json:
    """A ComputeDomain as a user writes it; its template is `<name>-channel` unless said."""
    channel = {"resourceClaimTemplate": {"name": template or f"{name}-channel"}}
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": name},
        "spec": {"channel": channel, **spec},
    }


def bound_for(node: str) -> Json:
    """Spec of a pod that a DaemonSet made for this node, before the scheduler has bound it."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": required}}


def no_node_fits(message: str) -> Json:
    """Status of a pod that the scheduler cannot bind."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
    }
    return {"phase": "Pending", "conditions": [condition]}


def image_not_pulled(message: str) -> Json:
    """Status of a pod whose one container's image the kubelet cannot get."""
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
    """Path of a namespace's domains, or of one."""
    return f"{API}/namespaces/{namespace_}/computedomains" + (f"/{name}" if name else "")


def cliques_path(namespace_: str, name: str = "") -> str:
    """Path of a namespace's cliques, or of one."""
    return f"{API}/namespaces/{namespace_}/computedomaincliques" + (f"/{name}" if name else "")


def entry(node: str, index: int, status: str = "Ready", **more: Any) -> Json:
    """What a daemon writes about itself."""
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
    """A clique as the daemons of a domain keep it."""
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
