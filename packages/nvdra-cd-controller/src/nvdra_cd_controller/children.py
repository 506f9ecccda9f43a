# SPDX-License-Identifier: Apache-2.0
"""The children of a domain: a DaemonSet, its daemons' and its workload's claim template.

Where daemons are not open to all pods there is a NetworkPolicy as well (`network_policies`). The
children are JSON in the form of resource.k8s.io/v1 and apps/v1. This module says what they should
be and how the stored objects differ. A field that we write is set back when it is changed; a
field that we do not write keeps the value that another writer gave it.
Source: docs/reference/compute-domain.md, "Generated objects", "What the controller creates".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nvdra_api import names
from nvdra_api.gates import FeatureGates
from nvdra_api.ids import DomainUID
from nvdra_api.meta import JsonObject
from nvdra_api.v1beta1 import ComputeDomain
from nvdra_api.v1beta1.compute_domain import AllocationMode
from nvdra_runtime.computedomain import claim_annotations
from nvdra_runtime.computedomain.domain_settings import PeerNames

from nvdra_cd_controller import network_policies
from nvdra_cd_controller.network_policies import NetworkRules

_RESOURCE_API: Final = f"{names.RESOURCE_GROUP}/v1"
_DAEMON_REQUEST: Final = "daemon"
_CHANNEL_REQUEST: Final = "channel"
_POD_CLAIM: Final = "compute-domain-daemon"
_EFFECTS: Final = ("NoSchedule", "NoExecute", "PreferNoSchedule")

_LOCAL_PORT_RANGE: Final = {
    "name": "net.ipv4.ip_local_port_range",
    "value": f"32768 {min(names.IMEX_PORTS) - 1}",
}
"""Keeps the kernel from giving IMEX's ports to outgoing connections of the pod. The daemon's
connection to the API server could otherwise hold one of them, and IMEX would never start."""

_ALL_ADDRESSES: Final = ("", "0.0.0.0", "[::]")
_PROBE_TIMES: Final = {"periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 2}
"""The daemon answers from memory. It asks nvidia-imex every 3 s at most until it is READY."""

_EXACT_MAPS: Final = frozenset({"nodeSelector", "matchLabels"})
"""Maps that must have exactly our keys: an additional one would keep daemons off their nodes."""

_EXACT_SPECS: Final = frozenset({network_policies.KIND})
"""Kinds whose whole spec is ours: in a rule, each additional field lets more or fewer in."""


@dataclass(frozen=True, slots=True)
class ChildConfig:
    """What the children of all domains have in common, taken from the settings.

    Attributes:
        namespace: Namespace of the driver, in which DaemonSets are created.
        image: Image of the daemons.
        pull_policy: The image's pull policy; empty leaves the default to the API server.
        pull_secrets: Names of the image pull secrets.
        priority_class: Priority class of the daemons' pods; empty for none.
        resources: `requests` and `limits` of the daemons, quantities as the API server writes them.
        verbosity: `-v` of the daemons.
        logging_format: Format of the daemons' logs, the controller's own: one setting says it for
            both. `text`, the daemons' default, is not passed on.
        max_nodes: Maximum number of a domain's nodes in one clique; of domains that are made now.
        gates: Feature gates of the daemons; of domains that are made now.
        http_endpoint: `host:port` of the daemons' probes and metrics; empty for none.
        variables: Further environment variables of the daemons: how they export telemetry.
        is_host_managed: Whether the hosts run IMEX, so that domains have no daemons.
        peer_names: Which DNS names the daemons have; in domains that are made now.
        network_rules: What the daemons' NetworkPolicies allow besides connections within the
            domain; None if there are to be no policies.
    """

    namespace: str
    image: str
    pull_policy: str
    pull_secrets: tuple[str, ...]
    priority_class: str
    resources: Mapping[str, Mapping[str, str]]
    verbosity: int
    logging_format: str
    max_nodes: int
    gates: FeatureGates
    http_endpoint: str
    variables: Mapping[str, str]
    is_host_managed: bool
    peer_names: PeerNames = PeerNames.DOMAIN
    network_rules: NetworkRules | None = None


def daemon_claim_template(domain: ComputeDomain, namespace: str) -> JsonObject:
    """The claim template of a domain's daemons."""
    config = {"kind": "ComputeDomainDaemonConfig", "domainID": domain.uid}
    metadata = {"name": names.daemon_name(domain.uid), "namespace": namespace}
    return _claim_template(
        domain, metadata, names.TARGET_DAEMON, _DAEMON_REQUEST, names.DAEMON_CLASS, config
    )


def workload_claim_template(domain: ComputeDomain, child_config: ChildConfig) -> JsonObject:
    """The claim template of a domain's workload, in the domain's namespace.

    Raises:
        ValueError: The domain has no `spec.channel`. Only the reference driver's CRD allows that.
    """
    channel = domain.spec.channel
    if channel is None:
        raise ValueError("spec.channel is missing")
    mode = AllocationMode.SINGLE.value if child_config.is_host_managed else channel.allocation_mode
    config = {
        "kind": "ComputeDomainChannelConfig",
        "domainID": domain.uid,
        "allocationMode": mode or AllocationMode.SINGLE.value,
    }
    metadata = {
        "name": channel.resource_claim_template.name,
        "namespace": domain.metadata.namespace,
    }
    return _claim_template(
        domain, metadata, names.TARGET_WORKLOAD, _CHANNEL_REQUEST, names.CHANNEL_CLASS, config
    )


def daemonset(uid: DomainUID, namespace: str, child_config: ChildConfig) -> JsonObject:
    """A domain's DaemonSet: one daemon on each node that is labelled with the domain's UID.

    The update strategy is OnDelete, because an update such as another image must not restart the
    daemons of a running domain. The readiness probe is for those who look at the pod: a daemon
    reports in its clique whether it is ready. There is no liveness probe, because the daemon ends
    and starts a hung nvidia-imex by itself.
    """
    labels = {names.DOMAIN_LABEL: uid}
    claim = names.daemon_name(uid)
    container: JsonObject = {
        "name": names.DAEMON_CONTAINER,
        "image": child_config.image,
        "command": [names.DAEMON_CONTAINER, "-v", "$(LOG_VERBOSITY)", "run"],
        "env": _environment(child_config),
        "resources": {"claims": [{"name": _POD_CLAIM}], **child_config.resources},
        **dict.fromkeys(("startupProbe", "livenessProbe", "readinessProbe")),
        **_readiness_probe(child_config.http_endpoint),
    }
    if child_config.pull_policy:
        container["imagePullPolicy"] = child_config.pull_policy
    if child_config.http_endpoint:
        port = int(child_config.http_endpoint.rpartition(":")[2])
        container["ports"] = [{"name": "http", "containerPort": port, "protocol": "TCP"}]
    pod: JsonObject = {
        "serviceAccountName": names.DAEMON_SERVICE_ACCOUNT,
        "nodeSelector": labels,
        "tolerations": [{"operator": "Exists", "effect": effect} for effect in _EFFECTS],
        "resourceClaims": [{"name": _POD_CLAIM, "resourceClaimTemplateName": claim}],
        "securityContext": {"sysctls": [_LOCAL_PORT_RANGE]},
        "containers": [container],
    }
    if child_config.pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in child_config.pull_secrets]
    if child_config.priority_class:
        pod["priorityClassName"] = child_config.priority_class
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


def _readiness_probe(http_endpoint: str) -> JsonObject:
    """The probe of a daemon that listens at its pod's address; without one there is none."""
    if not http_endpoint or http_endpoint.rpartition(":")[0] not in _ALL_ADDRESSES:
        return {}
    others = dict.fromkeys(("exec", "grpc", "tcpSocket"))  # those of the reference driver's
    request = {"path": "/readyz", "port": "http"}
    return {"readinessProbe": {**_PROBE_TIMES, **others, "httpGet": request}}


def network_policy(uid: DomainUID, namespace: str, child_config: ChildConfig) -> JsonObject | None:
    """The NetworkPolicy of a domain's daemons; None if there is to be none."""
    rules = child_config.network_rules
    return None if rules is None else network_policies.network_policy(uid, namespace, rules)


def creation_body(desired: JsonObject) -> JsonObject:
    """The object to create: the desired one without the fields that must be absent (None)."""
    body: JsonObject = _without_none(desired)
    return body


def corrected(stored: JsonObject, desired: JsonObject) -> JsonObject | None:
    """The stored object with the desired fields set; None if nothing differs.

    Labels and finalizers of others stay, as does every field that is not in `desired`. A desired
    value of None removes the field. Defaults of the API server do not count as a difference. A
    claim template keeps what it gives its claims as metadata: it cannot be changed, and a template
    of an earlier release or of the reference driver, which gives them none, serves as well. Of a
    NetworkPolicy the whole spec is the desired one.
    """
    if desired["kind"] == "ResourceClaimTemplate":
        desired = {**desired, "spec": {"spec": desired["spec"]["spec"]}}
    merged: JsonObject = _merge(stored, desired, "")
    if desired["kind"] in _EXACT_SPECS:
        merged["spec"] = desired["spec"]
    return None if merged == stored else merged


def belongs_to_domain(stored: JsonObject, desired: JsonObject) -> bool:
    """Whether an object with a child's name belongs to the domain and only lost its label.

    A DaemonSet and a daemons' template have the domain's UID in their names. A workload's template
    belongs to the domain only if its spec is the desired one: every user may use that name.
    """
    uid = desired["metadata"]["labels"][names.DOMAIN_LABEL]
    label = (stored["metadata"].get("labels") or {}).get(names.DOMAIN_LABEL)
    if label is not None:
        return bool(label == uid)
    return stored["metadata"]["name"] == names.daemon_name(uid) or not differs_in_spec(
        stored, desired
    )


def differs_in_spec(stored: JsonObject, desired: JsonObject) -> bool:
    """Whether the stored spec differs from the desired one. A claim template's is immutable."""
    merged = corrected(stored, desired)
    return merged is not None and merged.get("spec") != stored.get("spec")


def _claim_template(
    domain: ComputeDomain,
    metadata: JsonObject,
    target: str,
    request: str,
    device_class: str,
    config: JsonObject,
) -> JsonObject:
    opaque = {
        "driver": names.COMPUTE_DOMAIN_DRIVER,
        "parameters": {"apiVersion": names.NVIDIA_API_VERSION, **config},
    }
    annotations = claim_annotations.annotations(domain.metadata.namespace, domain.metadata.name)
    return {
        "apiVersion": _RESOURCE_API,
        "kind": "ResourceClaimTemplate",
        "metadata": {
            **metadata,
            "labels": {names.DOMAIN_LABEL: domain.uid, names.DOMAIN_TARGET_LABEL: target},
            "finalizers": [names.DOMAIN_FINALIZER],
        },
        "spec": {
            "metadata": {"annotations": annotations},
            "spec": {
                "devices": {
                    "requests": [{"name": request, "exactly": {"deviceClassName": device_class}}],
                    "config": [{"requests": [request], "opaque": opaque}],
                }
            },
        },
    }


def _environment(child_config: ChildConfig) -> list[JsonObject]:
    fields = {
        "NODE_NAME": "spec.nodeName",
        "POD_IP": "status.podIP",
        "POD_UID": "metadata.uid",
        "POD_NAME": "metadata.name",
        "POD_NAMESPACE": "metadata.namespace",
    }
    first = {
        "LOG_VERBOSITY": str(child_config.verbosity),
        "MAX_NODES_PER_IMEX_DOMAIN": str(child_config.max_nodes),
    }
    last = {
        "CLIQUE_WRITER": "controller",
        "NVIDIA_VISIBLE_DEVICES": "void",
        "FEATURE_GATES": child_config.gates.full_text(),
    }
    if child_config.peer_names != PeerNames.SHARED:  # running DaemonSets of earlier releases stay
        last["PEER_NAMES"] = child_config.peer_names.value
    if child_config.logging_format != "text":
        last["LOGGING_FORMAT"] = child_config.logging_format
    if child_config.http_endpoint:
        last["HTTP_ENDPOINT"] = child_config.http_endpoint
    return [
        *({"name": name, "value": value} for name, value in first.items()),
        *(
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for name, path in fields.items()
        ),
        *(
            {"name": name, "value": value}
            for name, value in {**last, **child_config.variables}.items()
        ),
    ]


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_none(each) for each in value]
    return value


def _merge(stored: Any, desired: Any, key: str) -> Any:
    if isinstance(desired, dict) and isinstance(stored, dict) and key not in _EXACT_MAPS:
        over = {name: _merge(stored.get(name), each, name) for name, each in desired.items()}
        merged = {**stored, **over}
        return {name: each for name, each in merged.items() if desired.get(name, each) is not None}
    if key == "finalizers" and isinstance(stored, list):
        return [*stored, *(each for each in desired if each not in stored)]
    if isinstance(desired, list) and isinstance(stored, list) and len(stored) == len(desired):
        return [_merge(one, other, "") for one, other in zip(stored, desired, strict=True)]
    return _without_none(desired)
