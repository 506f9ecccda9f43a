# SPDX-License-Identifier: Apache-2.0
"""Changes of a Deployment or DaemonSet that would give its pods more than they should have.

A change is a function of the object, which it changes in place. Tests of admission policies try
each of them with the objects that the product makes.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final

Json = dict[str, Any]
Change = Callable[[Json], object]

ONE_MORE: Final = {"name": "more", "image": "i"}
"""A container."""
COMMAND: Final = {"exec": {"command": ["sh"]}}
"""A hook or a probe."""

PODS_FIELDS: Final[Mapping[str, Any]] = {
    "activeDeadlineSeconds": None,  # refused by the API server itself
    "dnsConfig": {"nameservers": ["192.0.2.1"]},
    "enableServiceLinks": False,
    "ephemeralContainers": None,  # refused by the API server itself
    "hostAliases": [{"ip": "192.0.2.1", "hostnames": ["kubernetes.default.svc"]}],
    "hostIPC": True,
    "hostNetwork": True,
    "hostUsers": None,  # not beside hostPID
    "hostname": "x",
    "hostnameOverride": None,  # Kubernetes 1.34 and later
    "initContainers": [ONE_MORE],
    "nodeName": "node-2",
    "os": {"name": "linux"},
    "overhead": None,  # needs a runtime class
    "preemptionPolicy": "Never",
    "priority": 1,
    "readinessGates": [{"conditionType": "x"}],
    "resources": None,  # Kubernetes 1.34 and later
    "runtimeClassName": "x",
    "schedulingGates": [{"name": "x"}],
    "schedulingGroup": None,  # alpha
    "setHostnameAsFQDN": True,
    "shareProcessNamespace": None,  # not beside hostPID
    "subdomain": "x",
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}
    ],
    "workloadRef": None,  # alpha
}
"""A value for each field of a pod that no pod of the driver's programs has; None if not every API
server takes one."""

CONTAINERS_FIELDS: Final[Mapping[str, Any]] = {
    "envFrom": [{"secretRef": {"name": "nvdra-nvdra-webhook-cert"}}],
    "lifecycle": {"postStart": COMMAND},
    "livenessProbe": COMMAND,
    "readinessProbe": COMMAND,
    "resizePolicy": None,  # Kubernetes 1.33 and later
    "restartPolicy": None,  # alpha
    "restartPolicyRules": None,  # alpha
    "stdin": True,
    "stdinOnce": True,
    "tty": True,
    "volumeDevices": None,  # needs a volume that is refused
    "workingDir": "/mps",
}
"""The same of a container."""


def changed(obj: Json, change: Change) -> Json:
    """A copy with a change."""
    copied = copy.deepcopy(obj)
    change(copied)
    return copied


def pod_of(obj: Json) -> Json:
    pod: Json = obj["spec"]["template"]["spec"]
    return pod


def container_of(obj: Json) -> Json:
    container: Json = pod_of(obj)["containers"][0]
    return container


def named(name: str) -> Change:
    return lambda obj: obj["metadata"].update(name=name)


def in_template(**fields: Any) -> Change:
    return lambda obj: obj["spec"]["template"]["metadata"].update(fields)


def in_pod(**fields: Any) -> Change:
    return lambda obj: pod_of(obj).update(fields)


def in_container(**fields: Any) -> Change:
    return lambda obj: container_of(obj).update(fields)


def with_container() -> Change:
    return lambda obj: pod_of(obj)["containers"].append(ONE_MORE)


def with_account(name: str) -> Change:
    """With a service account, by both names that the field has."""
    return in_pod(serviceAccountName=name, serviceAccount=name)


def with_image(old: str, new: str) -> Change:
    """With a part of the image's name replaced."""
    return lambda obj: container_of(obj).update(image=container_of(obj)["image"].replace(old, new))


def with_variable(**variable: Any) -> Change:
    return lambda obj: container_of(obj).setdefault("env", []).append(variable)


def with_argument(text: str) -> Change:
    return lambda obj: container_of(obj).setdefault("args", []).append(text)


def with_volume(source: Json, path: str = "/mps") -> Change:
    """With a volume more, which is mounted at a path instead of what is there."""

    def change(obj: Json) -> None:
        pod_of(obj).setdefault("volumes", []).append({"name": "more", **source})
        mounts = container_of(obj).setdefault("volumeMounts", [])
        mounts[:] = [mount for mount in mounts if mount["mountPath"] != path]
        mounts.append({"name": "more", "mountPath": path})

    return change


def with_host_path(path: str, kind: str = "Directory") -> Change:
    return with_volume({"hostPath": {"path": path, "type": kind}})


def with_mount(path: str, **fields: Any) -> Change:
    """With another way to mount a volume."""

    def change(obj: Json) -> None:
        mounts = container_of(obj)["volumeMounts"]
        next(mount for mount in mounts if mount["mountPath"] == path).update(fields)

    return change


SECCOMP = {"seccompProfile": {"type": "RuntimeDefault"}}


def with_admitted_additions(obj: Json) -> None:
    """What another admission of the cluster adds, named in the values of the installation."""
    template = obj["spec"]["template"]["metadata"]
    template.setdefault("labels", {})["injected"] = "yes"
    template.setdefault("annotations", {})["policies.kyverno.io/last-applied"] = "x"
    pod_of(obj).setdefault("securityContext", {}).update(SECCOMP)
    container_of(obj).setdefault("securityContext", {}).update(SECCOMP)


def unconfined(obj: Json) -> None:
    """Another profile than the one that policies ask for."""
    context = pod_of(obj).setdefault("securityContext", {})
    context["seccompProfile"] = {"type": "Unconfined"}


def every_field(words_of_pods: str, words_of_containers: str) -> dict[str, tuple[Change, str]]:
    """A change of each field that stays unset, with the words of its refusal."""
    pods = {
        f"pod's {field}": (in_pod(**{field: value}), words_of_pods)
        for field, value in PODS_FIELDS.items()
        if value is not None
    }
    containers = {
        f"container's {field}": (in_container(**{field: value}), words_of_containers)
        for field, value in CONTAINERS_FIELDS.items()
        if value is not None
    }
    return pods | containers
