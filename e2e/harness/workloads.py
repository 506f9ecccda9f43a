"""Claims and pods as values: what a user's manifest would say, and what a container sees of it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubectl import Kubectl

IMAGE = "debian:12-slim"
DEVICE_CLASS = "gpu.nvidia.com"
API = "resource.k8s.io/v1"
IDLE = ["sh", "-c", "trap exit TERM; sleep infinity & wait"]
"""Waits, and ends at once when it is told to."""

ADMIN_LABELS = ("resource.kubernetes.io/admin-access", "resource.k8s.io/admin-access")
"""Either lets a namespace's claims ask for adminAccess: from Kubernetes 1.34, and in 1.33."""

Manifest = dict[str, Any]


def gpus(name: str = "gpu", *where: str, count: int = 1, admin: bool = False) -> Manifest:
    """A request for GPUs; `where` are CEL expressions that each must meet."""
    wanted: Manifest = {"count": count, **_wanted(where)}
    return {"name": name, "exactly": {**wanted, "adminAccess": True} if admin else wanted}


def first_of(name: str, **alternatives: str) -> Manifest:
    """A request for the first alternative that can be had: name → CEL expression."""
    wishes = [{"name": wish, **_wanted([where])} for wish, where in alternatives.items()]
    return {"name": name, "firstAvailable": wishes}


def attribute(name: str) -> str:
    """A device's attribute in CEL."""
    return f"device.attributes['{DEVICE_CLASS}'].{name}"


def is_gpu(uuid: str) -> str:
    """The CEL expression that one GPU alone meets."""
    return f"{attribute('uuid')} == '{uuid}'"


def claim(name: str, *requests: Manifest) -> Manifest:
    """A claim that several pods can name."""
    return _object("ResourceClaim", name, {"devices": {"requests": list(requests)}})


def template(name: str, *requests: Manifest) -> Manifest:
    """A template: every pod that names it gets a claim of its own."""
    return _object(
        "ResourceClaimTemplate", name, {"spec": {"devices": {"requests": list(requests)}}}
    )


def pod(
    name: str,
    *,
    templates: Sequence[str] = (),
    claims: Sequence[str] = (),
    containers: Mapping[str, Iterable[str]] | None = None,
) -> Manifest:
    """A pod that runs until it is deleted.

    Args:
        name: Of the pod.
        templates: Templates it has claims from, by the template's name.
        claims: Claims it shares, by the claim's name.
        containers: Container → what it uses of those, as `claim` or `claim/request`; without it
            there is one container, `main`, which uses all.
    """
    return _object("Pod", name, pod_spec(templates, claims, containers), version="v1")


def pod_spec(
    templates: Sequence[str] = (),
    claims: Sequence[str] = (),
    containers: Mapping[str, Iterable[str]] | None = None,
) -> Manifest:
    """The spec of such a pod."""
    uses = containers or {"main": [*templates, *claims]}
    return {
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": container,
                "image": IMAGE,
                "command": IDLE,
                "resources": {"claims": [_use(one) for one in used]},
            }
            for container, used in uses.items()
        ],
        "resourceClaims": [
            *({"name": each, "resourceClaimTemplateName": each} for each in templates),
            *({"name": each, "resourceClaimName": each} for each in claims),
        ],
    }


def held_back(manifest: Manifest) -> Manifest:
    """The pod so that it is scheduled at once, and begins to start only after `let_go`."""
    spec = manifest["spec"]
    first, *others = spec["containers"]
    volume = {"name": "gate", "configMap": {"name": manifest["metadata"]["name"]}}
    mount = {"name": "gate", "mountPath": "/gate"}
    containers = [{**first, "volumeMounts": [mount]}, *others]
    return {**manifest, "spec": {**spec, "containers": containers, "volumes": [volume]}}


def let_go(pods: Kubectl, name: str) -> None:
    """Let a pod that is held back start."""
    pods.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})


def wait_allocated(pods: Kubectl, name: str) -> None:
    """Until a pod's claims have devices, whatever becomes of those afterwards."""

    def unallocated() -> str | None:
        if "resourceClaimStatuses" not in pods.get("pod", name).get("status", {}):
            return "no claim yet"
        statuses = [each.get("status", {}) for each in claims_of(pods, name)]
        return None if all("allocation" in status for status in statuses) else str(statuses)

    pods.wait(unallocated, f"the claims of pod {name} to be allocated")


@dataclass(frozen=True)
class View:
    """The GPUs that a container sees: by nvidia-smi, and as device nodes (their minor numbers)."""

    uuids: frozenset[str]
    minors: frozenset[int]


def view(pods: Kubectl, name: str, container: str = "") -> View:
    """What a container of a running pod sees."""
    script = "nvidia-smi -L; ls /dev"
    text = pods.exec(name, "sh", "-c", script, container=container)
    return View(
        uuids=frozenset(re.findall(r"UUID: (GPU-[0-9a-f-]+)", text)),
        minors=frozenset(int(minor) for minor in re.findall(r"^nvidia(\d+)$", text, re.MULTILINE)),
    )


def allow_admin_access(pods: Kubectl) -> None:
    """Let claims of the namespace ask for GPUs that others have."""
    labels = [f"{label}=true" for label in ADMIN_LABELS]
    pods.run("label", "namespace", pods.namespace, *labels)


def claims_of(pods: Kubectl, name: str) -> list[Manifest]:
    """The claims of a pod, those made from templates included, in the order of its spec.

    Its status names them in any order: who made them has them in a Go map.
    """
    pod = pods.get("pod", name)
    statuses = pod["status"].get("resourceClaimStatuses", [])
    made = {entry["name"]: entry.get("resourceClaimName") for entry in statuses}
    asked = [entry["name"] for entry in pod["spec"].get("resourceClaims", [])]
    return [pods.get("resourceclaim", made[one]) for one in asked if made.get(one)]


def _wanted(where: Iterable[str]) -> Manifest:
    selectors = [{"cel": {"expression": expression}} for expression in where]
    return {"deviceClassName": DEVICE_CLASS, "selectors": selectors}


def _use(one: str) -> Manifest:
    name, _, request = one.partition("/")
    return {"name": name, "request": request} if request else {"name": name}


def _object(kind: str, name: str, spec: Manifest, version: str = API) -> Manifest:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
