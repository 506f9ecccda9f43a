# SPDX-License-Identifier: Apache-2.0
"""What is to be checked of an installation, and what follows from the objects that were read.

Nothing here asks the API server; `checker` does.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from nvdra_api.meta import JsonObject
from pydantic import BaseModel, ConfigDict, Field

from nvdra_runtime.computedomain import failed_creates
from nvdra_runtime.installation import placement
from nvdra_runtime.installation.placement import Placement, TaintedNode

NOT_CALLED: Final = "failed calling webhook"
DENIED: Final = "denied the request"
"""Words of API servers about webhooks."""
_LIMIT_RANGE: Final = (
    " usage per ",
    " max limit to request ratio per ",
    "must be less than or equal to",
)
"""Words of API servers about a container that a LimitRange or a default of it does not allow."""
_NAMED: Final = 3
"""How many nodes a line names: hundreds may have the same taint."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Plugin(_Model):
    """A plugin that runs on every node with its hardware."""

    program: str = Field(min_length=1)
    driver: str = Field(min_length=1)
    namespace: str = Field(min_length=1)
    selector: str = Field(min_length=1)
    daemonset: str = ""
    """Name of its DaemonSet, for what the DaemonSet's Events say."""
    placement: Placement | None = None
    """Where its pods may run; None: taints are not looked at."""


class Deployment(_Model):
    """A Deployment whose replicas must be ready."""

    name: str = Field(min_length=1)
    namespace: str = Field(min_length=1)


class Webhook(_Model):
    """The registration of the webhook, and a namespace whose claims it examines."""

    registration: str = Field(min_length=1)
    claim_namespace: str = Field(alias="claimNamespace", min_length=1)
    namespace: str = Field(min_length=1)
    selector: str = Field(min_length=1)


class Checks(_Model):
    """Everything that is to be checked."""

    device_classes: tuple[str, ...] = Field(default=(), alias="deviceClasses")
    api_versions: tuple[str, ...] = Field(default=(), alias="apiVersions")
    plugins: tuple[Plugin, ...] = ()
    deployments: tuple[Deployment, ...] = ()
    webhooks: tuple[Webhook, ...] = ()


class Finding(_Model):
    """One line of the report.

    Attributes:
        text: What was found, as a sentence.
        remedy: What to do; empty if there is nothing to do.
        may_be_meant: Whether an administrator can want it so: a remark, and no failure.
    """

    text: str
    remedy: str = ""
    may_be_meant: bool = False

    @property
    def is_good(self) -> bool:
        """Whether the test succeeds with it."""
        return not self.remedy or self.may_be_meant

    def __str__(self) -> str:
        """One or two lines for a terminal."""
        if not self.remedy:
            return f"✓ {self.text}"
        return f"{'!' if self.may_be_meant else '✗'} {self.text}\n    → {self.remedy}"


def of_plugin(
    plugin: Plugin,
    pods: Sequence[JsonObject],
    slices: Sequence[JsonObject],
    refused: str = "",
    nodes: Iterable[TaintedNode] = (),
) -> list[Finding]:
    """One finding for each node with a pod of the plugin, and for taints that keep it away.

    Args:
        plugin: The plugin.
        pods: Its pods.
        slices: The ResourceSlices of its driver in the whole cluster, as of `resource.k8s.io/v1`.
        refused: Why its last pod could not be created, by an Event of its DaemonSet.
        nodes: The nodes that it is for.
    """
    where = f"-n {plugin.namespace}"
    by_node: dict[str, list[JsonObject]] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node and "deletionTimestamp" not in pod["metadata"]:
            by_node.setdefault(node, []).append(pod)
    tainted = _of_taints(plugin, nodes, by_node)
    if by_node:
        found = (
            _of_node(plugin, node, on_node, [one for one in slices if _is_of(one, node)])
            for node, on_node in sorted(by_node.items())
        )
        return [*found, *tainted]
    if refused:
        text = f"{plugin.program} runs on no node, because its pods are refused: {refused}"
        see = f"daemonset -l {plugin.selector}"
        return [Finding(text=text, remedy=_remedy_of_refusal(plugin.namespace, see, refused))]
    return tainted or [
        Finding(
            text=f"{plugin.program} runs on no node",
            remedy="label the nodes that have GPUs: kubectl label node NODE "
            "nvidia.com/gpu.present=true; if they are labelled, see: "
            f"kubectl {where} describe daemonset -l {plugin.selector}",
        )
    ]


def of_deployment(deployment: Deployment, stored: JsonObject) -> Finding:
    """Whether as many replicas are ready as there should be."""
    wanted = stored["spec"].get("replicas", 1)
    status = stored.get("status") or {}
    ready = status.get("readyReplicas", 0)
    text = f"{ready} of {wanted} replicas of {deployment.name} are ready"
    if wanted and ready >= wanted:
        return Finding(text=text)
    where = f"-n {deployment.namespace}"
    if refused := _refused_replica(status):
        see = f"deployment {deployment.name}"
        remedy = _remedy_of_refusal(deployment.namespace, see, refused)
        return Finding(text=f"{text}, because its pods are refused: {refused}", remedy=remedy)
    return Finding(
        text=text,
        remedy=f"see why: kubectl {where} describe deployment {deployment.name}; "
        f"kubectl {where} logs deployment/{deployment.name}",
    )


def of_refusal(webhook: Webhook, refusal: str | None) -> Finding:
    """Whether the webhook has refused a claim with a config that no plugin would take.

    Args:
        webhook: The webhook.
        refusal: The API server's words; None if it has let the claim in.
    """
    pods = f"kubectl -n {webhook.namespace} get pods -l {webhook.selector}"
    if refusal is None:
        return Finding(
            text="a claim with a wrong config was let in: the webhook was not asked",
            remedy=f"compare failurePolicy and rules: kubectl get validatingwebhookconfiguration "
            f"{webhook.registration} -o yaml; and look at its pods: {pods}",
        )
    if DENIED in refusal:
        return Finding(text="the webhook refuses a claim with a wrong config")
    return Finding(
        text=f"the API server cannot ask the webhook: {refusal}",
        remedy=f"look at its pods and their log: {pods}; if they are ready, the network between "
        "API servers and pods, or the CA in the registration, is the cause: kubectl get "
        f"validatingwebhookconfiguration {webhook.registration} -o yaml",
    )


def _refused_replica(status: JsonObject) -> str:
    """Why a pod of a Deployment could not be created; empty if that is not what it says."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return failed_creates.shortened(str(condition.get("message") or ""))
    return ""


def _remedy_of_refusal(namespace: str, owner: str, refused: str) -> str:
    if "violates PodSecurity" in refused:
        return (
            f"kubectl label --overwrite namespace {namespace} "
            "pod-security.kubernetes.io/enforce=privileged"
        )
    if "quota" in refused:
        return (
            "let the namespace have pods of their priority class, by a ResourceQuota with a "
            "scopeSelector, or install with priorityClassName set to another one or empty"
        )
    if any(words in refused for words in _LIMIT_RANGE):
        return (
            f"a LimitRange of the namespace does not allow its requests and limits: see kubectl -n "
            f"{namespace} describe limitrange, and set resources of that component in the values"
        )
    return f"see: kubectl -n {namespace} describe {owner}"


def _of_taints(
    plugin: Plugin, nodes: Iterable[TaintedNode], occupied: Collection[str]
) -> list[Finding]:
    where = plugin.placement
    if where is None:
        return []
    found = []
    for each in placement.unreached(where, nodes, occupied):
        more = len(each.nodes) - _NAMED
        names = ", ".join(each.nodes[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        taints = ", ".join(placement.text_of(taint) for taint in each.taints)
        wanted = [*where.tolerations, *(placement.toleration(taint) for taint in each.taints)]
        found.append(
            Finding(
                text=f"{names}: {plugin.program} does not run there, because it does not tolerate "
                f"{taints}",
                remedy=f"if it should, set {where.setting} to {json.dumps(wanted)}; pods that "
                "claim devices need the toleration, too",
                may_be_meant=bool(occupied),
            )
        )
    return found


def _of_node(
    plugin: Plugin, node: str, pods: Sequence[JsonObject], slices: Sequence[JsonObject]
) -> Finding:
    waiting = [pod for pod in pods if not _is_ready(pod)]
    name = (waiting or pods)[0]["metadata"]["name"]
    look = (
        f"see why: kubectl -n {plugin.namespace} exec {name} -- {plugin.program} status; "
        f"kubectl -n {plugin.namespace} logs {name}"
    )
    if len(waiting) == len(pods):
        return Finding(text=f"{node}: {plugin.program} is not ready", remedy=look)
    if waiting:
        return Finding(
            text=f"{node}: {plugin.program} is ready, but not {name}, which is to replace it, so "
            "that the rollout does not go on",
            remedy=look,
        )
    if not slices:
        return Finding(
            text=f"{node}: {plugin.program} is ready, but there is no ResourceSlice of "
            f"{plugin.driver}",
            remedy=look,
        )
    newest = max(one["spec"]["pool"]["generation"] for one in slices)
    current = [one for one in slices if one["spec"]["pool"]["generation"] == newest]
    wanted = current[0]["spec"]["pool"]["resourceSliceCount"]
    if len(current) != wanted:
        return Finding(
            text=f"{node}: {len(current)} of {wanted} ResourceSlices of {plugin.driver} are there, "
            "so that the scheduler uses none",
            remedy=look,
        )
    devices = sum(len(one["spec"].get("devices") or ()) for one in current)
    if not devices:
        return Finding(text=f"{node}: {plugin.driver} publishes no device", remedy=look)
    return Finding(
        text=f"{node}: {plugin.program} is ready and publishes {_counted(devices, 'device')}"
    )


def _is_of(stored: JsonObject, node: str) -> bool:
    return bool(stored["spec"].get("nodeName") == node)


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
