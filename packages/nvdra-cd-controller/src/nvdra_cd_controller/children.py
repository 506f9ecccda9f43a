"""What a domain is given: a DaemonSet, its daemons' claim template, its workload's claim template.

As JSON in the shape of resource.k8s.io/v1 and apps/v1, and how what is stored differs from it. What
we write is ours and put back when somebody changes it; fields that we do not write are left to
whoever set them. Source: spec/compute-domain.md §6.7, §13.2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.types import names
from nvdra_api.types.domains import AllocationMode, ComputeDomain
from nvdra_api.types.gates import Gates
from nvdra_api.types.ids import DomainUID

_RESOURCE_API: Final = f"{names.RESOURCE_GROUP}/v1"
_DAEMON_REQUEST: Final = "daemon"
_CHANNEL_REQUEST: Final = "channel"
_POD_CLAIM: Final = "compute-domain-daemon"
_EFFECTS: Final = ("NoSchedule", "NoExecute", "PreferNoSchedule")

_OUTGOING: Final = {
    "name": "net.ipv4.ip_local_port_range",
    "value": f"32768 {min(names.IMEX_PORTS) - 1}",
}
"""Otherwise the kernel gives IMEX's ports, too, to connections that begin in the pod: the daemon's
own to the API server might have one for good, and IMEX would never start."""

_WHOLE: Final = frozenset({"nodeSelector", "matchLabels"})
"""Maps of which no other key is tolerated: one more would keep daemons from their nodes."""


@dataclass(frozen=True, slots=True)
class Making:
    """What all domains' children have in common; from the settings.

    Attributes:
        namespace: The driver's, where DaemonSets are made.
        image: Of the daemons.
        pull_policy: When it is pulled; empty leaves that to the API server.
        pull_secrets: Names of the secrets for it.
        priority_class: Of the daemons' pods; empty for none.
        resources: `requests` and `limits` of the daemons, quantities as the API server writes them.
        verbosity: `-v` of the daemons.
        max_nodes: Most nodes of a domain in one clique.
        gates: Handed on to the daemons.
        http_endpoint: `host:port` of their probes and metrics; empty for none.
        variables: More of their environment, by name: how they export traces.
        is_host_managed: There are no daemons of ours.
    """

    namespace: str
    image: str
    pull_policy: str
    pull_secrets: tuple[str, ...]
    priority_class: str
    resources: Mapping[str, Mapping[str, str]]
    verbosity: int
    max_nodes: int
    gates: Gates
    http_endpoint: str
    variables: Mapping[str, str]
    is_host_managed: bool


def daemon_template(uid: DomainUID, namespace: str) -> JsonObject:
    """Template of the claims of a domain's daemons."""
    config = {"kind": "ComputeDomainDaemonConfig", "domainID": uid}
    metadata = {"name": names.daemon_name(uid), "namespace": namespace}
    return _template(
        uid, metadata, names.TARGET_DAEMON, _DAEMON_REQUEST, names.DAEMON_CLASS, config
    )


def workload_template(domain: ComputeDomain, making: Making) -> JsonObject:
    """Template of the claims of a domain's workload, in the domain's namespace.

    Raises:
        ValueError: the domain has no spec; only the reference's definition lets one through.
    """
    channel = domain.spec.channel
    if channel is None:
        raise ValueError("spec.channel is missing")
    mode = AllocationMode.SINGLE.value if making.is_host_managed else channel.allocation_mode
    config = {
        "kind": "ComputeDomainChannelConfig",
        "domainID": domain.uid,
        "allocationMode": mode or AllocationMode.SINGLE.value,
    }
    metadata = {
        "name": channel.resource_claim_template.name,
        "namespace": domain.metadata.namespace,
    }
    return _template(
        domain.uid,
        metadata,
        names.TARGET_WORKLOAD,
        _CHANNEL_REQUEST,
        names.CHANNEL_CLASS,
        config,
    )


def daemonset(uid: DomainUID, namespace: str, making: Making) -> JsonObject:
    """A domain's DaemonSet: one daemon on each node that is labelled with the domain's UID.

    Pods are replaced only once they are deleted: a change of ours, such as another image, must not
    tear a running domain apart. There are no probes; the daemon says in its clique whether it is
    ready, and ends when it cannot go on.
    """
    labels = {names.DOMAIN_LABEL: uid}
    claim = names.daemon_name(uid)
    container: JsonObject = {
        "name": names.DAEMON_CONTAINER,
        "image": making.image,
        "command": [names.DAEMON_CONTAINER, "-v", "$(LOG_VERBOSITY)", "run"],
        "env": _environment(making),
        "resources": {"claims": [{"name": _POD_CLAIM}], **making.resources},
        **dict.fromkeys(("startupProbe", "livenessProbe", "readinessProbe")),
    }
    if making.pull_policy:
        container["imagePullPolicy"] = making.pull_policy
    if making.http_endpoint:
        port = int(making.http_endpoint.rpartition(":")[2])
        container["ports"] = [{"name": "http", "containerPort": port, "protocol": "TCP"}]
    pod: JsonObject = {
        "serviceAccountName": names.DAEMON_SERVICE_ACCOUNT,
        "nodeSelector": labels,
        "tolerations": [{"operator": "Exists", "effect": effect} for effect in _EFFECTS],
        "resourceClaims": [{"name": _POD_CLAIM, "resourceClaimTemplateName": claim}],
        "securityContext": {"sysctls": [_OUTGOING]},
        "containers": [container],
    }
    if making.pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in making.pull_secrets]
    if making.priority_class:
        pod["priorityClassName"] = making.priority_class
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": names.daemon_name(uid),
            "namespace": namespace,
            "labels": labels,
            "finalizers": [names.DOMAIN_FINALIZER],
        },
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "OnDelete", "rollingUpdate": None},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def created(wanted: JsonObject) -> JsonObject:
    """The object to send for what is not there yet: what must be absent is left out."""
    bare: JsonObject = _without_absent(wanted)
    return bare


def healed(stored: JsonObject, wanted: JsonObject) -> JsonObject | None:
    """The stored object with what we want laid over it; None where nothing differs.

    Labels and finalizers of others stay, and every field that we do not write. What we want to be
    absent (None) is taken out. The API server's defaults do not count as a difference.
    """
    laid: JsonObject = _laid(stored, wanted, "")
    return None if laid == stored else laid


def is_ours(stored: JsonObject, wanted: JsonObject) -> bool:
    """Is an object of a child's name the domain's own, that only lost its label?

    A DaemonSet and a daemon's template have the UID in their names. A workload's template is ours
    only if it says what we wrote: anybody may have made one of that name.
    """
    uid = wanted["metadata"]["labels"][names.DOMAIN_LABEL]
    label = (stored["metadata"].get("labels") or {}).get(names.DOMAIN_LABEL)
    if label is not None:
        return bool(label == uid)
    return stored["metadata"]["name"] == names.daemon_name(uid) or not changes_spec(stored, wanted)


def changes_spec(stored: JsonObject, wanted: JsonObject) -> bool:
    """Does what is stored differ in its spec? That of a claim template can only be made anew."""
    healed_ = healed(stored, wanted)
    return healed_ is not None and healed_.get("spec") != stored.get("spec")


def _template(
    uid: DomainUID,
    metadata: JsonObject,
    target: str,
    request: str,
    device_class: str,
    config: JsonObject,
) -> JsonObject:
    opaque = {
        "driver": names.COMPUTE_DOMAIN_DRIVER,
        "parameters": {"apiVersion": names.CONFIG_API_VERSION, **config},
    }
    return {
        "apiVersion": _RESOURCE_API,
        "kind": "ResourceClaimTemplate",
        "metadata": {
            **metadata,
            "labels": {names.DOMAIN_LABEL: uid, names.DOMAIN_TARGET_LABEL: target},
            "finalizers": [names.DOMAIN_FINALIZER],
        },
        "spec": {
            "spec": {
                "devices": {
                    "requests": [{"name": request, "exactly": {"deviceClassName": device_class}}],
                    "config": [{"requests": [request], "opaque": opaque}],
                }
            }
        },
    }


def _environment(making: Making) -> list[JsonObject]:
    fields = {
        "NODE_NAME": "spec.nodeName",
        "POD_IP": "status.podIP",
        "POD_UID": "metadata.uid",
        "POD_NAME": "metadata.name",
        "POD_NAMESPACE": "metadata.namespace",
    }
    gates = "".join(f"{name}={str(on).lower()}," for name, on in making.gates.as_map().items())
    first = {
        "LOG_VERBOSITY": str(making.verbosity),
        "MAX_NODES_PER_IMEX_DOMAIN": str(making.max_nodes),
    }
    last = {"NVIDIA_VISIBLE_DEVICES": "void", "FEATURE_GATES": gates}
    if making.http_endpoint:
        last["HTTP_ENDPOINT"] = making.http_endpoint
    return [
        *({"name": name, "value": value} for name, value in first.items()),
        *(
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for name, path in fields.items()
        ),
        *({"name": name, "value": value} for name, value in {**last, **making.variables}.items()),
    ]


def _without_absent(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_absent(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_absent(each) for each in value]
    return value


def _laid(stored: Any, wanted: Any, key: str) -> Any:
    if isinstance(wanted, dict) and isinstance(stored, dict) and key not in _WHOLE:
        over = {name: _laid(stored.get(name), each, name) for name, each in wanted.items()}
        merged = {**stored, **over}
        return {name: each for name, each in merged.items() if wanted.get(name, each) is not None}
    if key == "finalizers" and isinstance(stored, list):
        return [*stored, *(each for each in wanted if each not in stored)]
    if isinstance(wanted, list) and isinstance(stored, list) and len(stored) == len(wanted):
        return [_laid(one, other, "") for one, other in zip(stored, wanted, strict=True)]
    return _without_absent(wanted)
