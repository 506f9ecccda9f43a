# SPDX-License-Identifier: Apache-2.0
"""Manifests of claims and pods, and the GPUs that a container sees."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nvdra_testing.cluster.kubectl import Kubectl

IMAGE = "debian:12-slim"
PYTHON_IMAGE = "python:3.12-slim"
DEVICE_CLASS = "gpu.nvidia.com"
MIG_CLASS = "mig.nvidia.com"
API_VERSION = "resource.k8s.io/v1"
IDLE_COMMAND = ["sh", "-c", "trap exit TERM; sleep infinity & wait"]
"""Waits, and ends at once on SIGTERM."""

ADMIN_LABELS = ("resource.kubernetes.io/admin-access", "resource.k8s.io/admin-access")
"""Namespace labels that allow adminAccess: of Kubernetes 1.34 and later, and of 1.33."""

Manifest = dict[str, Any]


def gpus(name: str = "gpu", *where: str, count: int = 1, admin: bool = False) -> Manifest:
    """A request for GPUs that meet all CEL expressions in `where`."""
    wanted: Manifest = {"count": count, **_device_selection(where)}
    return {"name": name, "exactly": {**wanted, "adminAccess": True} if admin else wanted}


def mig_devices(name: str, *where: str, count: int = 1) -> Manifest:
    """A request for MIG devices that meet all CEL expressions in `where`."""
    return {"name": name, "exactly": {"count": count, **_device_selection(where, MIG_CLASS)}}


def mig_device_of(parent: str, profile: str) -> Manifest:
    """A request for a MIG device with a profile, of the GPU with this UUID."""
    return mig_devices(
        "mig",
        f"{attribute('profile')} == '{profile}'",
        f"{attribute('parentUUID')} == '{parent}'",
    )


def first_available(name: str, **alternatives: str) -> Manifest:
    """A request for the first available alternative: name → CEL expression."""
    wishes = [{"name": wish, **_device_selection([where])} for wish, where in alternatives.items()]
    return {"name": name, "firstAvailable": wishes}


def attribute(name: str) -> str:
    """A device attribute in CEL."""
    return f"device.attributes['{DEVICE_CLASS}'].{name}"


def is_gpu_with_uuid(uuid: str) -> str:
    """A CEL expression that only one GPU meets."""
    return f"{attribute('uuid')} == '{uuid}'"


def is_whole_gpu(uuid: str) -> str:
    """The same where MIG devices are offered, which have no UUID before they are made."""
    return f"{attribute('type')} == 'gpu' && {is_gpu_with_uuid(uuid)}"


def claim(name: str, *requests: Manifest, config: Manifest | None = None) -> Manifest:
    """A claim that several pods can use; `config` as of a template."""
    return _object("ResourceClaim", name, {"devices": _devices(requests, config)})


def template(
    name: str, *requests: Manifest, same: str = "", config: Manifest | None = None
) -> Manifest:
    """A claim template; every pod that uses it gets its own claim.

    All devices of the claim have the same value of the attribute `same`, if one is given. `config`
    is a config of the GPU driver, without its API version, or one for each request by its name.
    """
    devices = _devices(requests, config)
    if same:
        devices["constraints"] = [{"matchAttribute": same}]
    return _object("ResourceClaimTemplate", name, {"spec": {"devices": devices}})


def pod(
    name: str,
    *,
    templates: Sequence[str] = (),
    claims: Sequence[str] = (),
    containers: Mapping[str, Iterable[str]] | None = None,
) -> Manifest:
    """A pod that runs until it is deleted.

    Args:
        name: Its name.
        templates: The claim templates that it uses, by name.
        claims: The claims that it uses, by name.
        containers: Container → the claims that it uses, as `claim` or `claim/request`. By default
            one
            container, `main`, uses all claims.
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
                "command": IDLE_COMMAND,
                "resources": {"claims": [_claim_reference(one) for one in used]},
            }
            for container, used in uses.items()
        ],
        "resourceClaims": [
            *({"name": each, "resourceClaimTemplateName": each} for each in templates),
            *({"name": each, "resourceClaimName": each} for each in claims),
        ],
    }


def gated_pod(manifest: Manifest) -> Manifest:
    """The pod with a volume that does not exist: it is scheduled, and starts after `open_gate`."""
    spec = manifest["spec"]
    first, *others = spec["containers"]
    volume = {"name": "gate", "configMap": {"name": manifest["metadata"]["name"]}}
    mount = {"name": "gate", "mountPath": "/gate"}
    containers = [{**first, "volumeMounts": [mount]}, *others]
    return {**manifest, "spec": {**spec, "containers": containers, "volumes": [volume]}}


def open_gate(pods: Kubectl, name: str) -> None:
    """Let a gated pod start."""
    pods.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})


def wait_allocated(pods: Kubectl, name: str) -> None:
    """Wait until the claims of a pod are allocated."""

    def unallocated() -> str | None:
        if "resourceClaimStatuses" not in pods.get("pod", name).get("status", {}):
            return "no claim yet"
        statuses = [each.get("status", {}) for each in claims_of(pods, name)]
        return None if all("allocation" in status for status in statuses) else str(statuses)

    pods.wait(unallocated, f"the claims of pod {name} to be allocated")


@dataclass(frozen=True)
class VisibleGpus:
    """The GPUs that a container sees: UUIDs from nvidia-smi, minor numbers of the device nodes."""

    uuids: frozenset[str]
    minors: frozenset[int]


def visible_gpus(pods: Kubectl, name: str, container: str = "") -> VisibleGpus:
    """The GPUs that a container of a running pod sees."""
    script = "nvidia-smi -L; ls /dev"
    text = pods.exec(name, "sh", "-c", script, container=container)
    return VisibleGpus(
        uuids=frozenset(re.findall(r"UUID: (GPU-[0-9a-f-]+)", text)),
        minors=frozenset(int(minor) for minor in re.findall(r"^nvidia(\d+)$", text, re.MULTILINE)),
    )


def visible_mig_devices(pods: Kubectl, name: str, container: str = "") -> frozenset[str]:
    """The UUIDs of the MIG devices that a container of a running pod sees."""
    text = pods.exec(name, "nvidia-smi", "-L", container=container)
    return frozenset(re.findall(r"UUID: (MIG-[0-9a-f-]+)", text))


def wait_unschedulable(pods: Kubectl, name: str) -> str:
    """Wait until the scheduler has said that no node fits a pod; returns what it said."""

    def verdict() -> str:
        conditions = pods.get("pod", name)["status"].get("conditions", [])
        refused = (each for each in conditions if each.get("reason") == "Unschedulable")
        return next((str(each["message"]) for each in refused), "")

    pods.wait(lambda: None if verdict() else "none", f"the scheduler's verdict on pod {name}")
    return verdict()


def allow_admin_access(pods: Kubectl) -> None:
    """Allow adminAccess in the namespace."""
    labels = [f"{label}=true" for label in ADMIN_LABELS]
    pods.run("label", "namespace", pods.namespace, *labels)


def living(objects: Iterable[Manifest]) -> list[Manifest]:
    """Those that are not being deleted."""
    return [each for each in objects if "deletionTimestamp" not in each["metadata"]]


def claims_of(pods: Kubectl, name: str) -> list[Manifest]:
    """The claims of a pod, including those from templates, in the order of its spec.

    The pod's status lists them in any order, because they come from a Go map.
    """
    pod = pods.get("pod", name)
    statuses = pod["status"].get("resourceClaimStatuses", [])
    made = {entry["name"]: entry.get("resourceClaimName") for entry in statuses}
    asked = [entry["name"] for entry in pod["spec"].get("resourceClaims", [])]
    return [pods.get("resourceclaim", made[one]) for one in asked if made.get(one)]


def _devices(requests: Sequence[Manifest], config: Manifest | None) -> Manifest:
    devices: Manifest = {"requests": list(requests)}
    if config and "kind" in config:
        devices["config"] = [_opaque(config)]
    elif config:
        devices["config"] = [{"requests": [name], **_opaque(config[name])} for name in config]
    return devices


def _opaque(config: Manifest) -> Manifest:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", **config}
    return {"opaque": {"driver": DEVICE_CLASS, "parameters": parameters}}


def _device_selection(where: Iterable[str], device_class: str = DEVICE_CLASS) -> Manifest:
    selectors = [{"cel": {"expression": expression}} for expression in where]
    return {"deviceClassName": device_class, "selectors": selectors}


def _claim_reference(one: str) -> Manifest:
    name, _, request = one.partition("/")
    return {"name": name, "request": request} if request else {"name": name}


def _object(kind: str, name: str, spec: Manifest, version: str = API_VERSION) -> Manifest:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
