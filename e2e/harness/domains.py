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
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for path in sorted(CRDS.glob("*.yaml")):
        made = server.create(definitions, yaml.safe_load(path.read_text()))
        name, plural = made["metadata"]["name"], made["spec"]["names"]["plural"]
        until = time.monotonic() + ESTABLISHED_S
        while not (_is_established(server, f"{definitions}/{name}") and _is_served(server, plural)):
            assert time.monotonic() < until, f"{name} was never established"
            time.sleep(0.05)


def _is_established(server: ApiServer, path: str) -> bool:
    conditions = server.call("GET", path).get("status", {}).get("conditions", ())
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


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
