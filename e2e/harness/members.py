"""Compute domains in a lab: what a user applies, and what there is of a domain, from API to node.

Objects are JSON. A domain is named by its UID, because its children and the labels of nodes are.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import domains
import workloads
from cluster import RELEASE, Cluster
from kubectl import Kubectl
from nvdra_api.types import names

CDI = "/var/run/cdi"
CHANNELS = "/dev/nvidia-caps-imex-channels"
LIST_AND_IDLE = ["sh", "-c", f"ls {CHANNELS}; trap exit TERM; sleep infinity & wait"]
CONTROLLER = f"app.kubernetes.io/name=nvdra-cd-controller,app.kubernetes.io/instance={RELEASE}"
CONTROLLER_NAME = f"{RELEASE}-nvdra-cd-controller"
GONE_S = 20
SETTINGS = ("--set=nvdra-cd-controller.controller.maxNodesPerImexDomain=2",)
"""Of an install for tests: IMEX calls a domain UP when everybody of its list is there, so the list
is as long as there are nodes."""

Json = dict[str, Any]


def channel_of(domain: str) -> str:
    """The claim template that a domain of `apply` has its controller make."""
    return f"{domain}-channel"


def apply(pods: Kubectl, name: str, *, mode: str = "Single", nodes: int = 0) -> str:
    """Make a domain in the namespace, and wait for its workload's template; its UID."""
    manifest = domains.domain(name, channel_of(name), numNodes=nodes)
    manifest["spec"]["channel"]["allocationMode"] = mode
    pods.apply(manifest)

    def lacking() -> str | None:
        return None if pods.exists("resourceclaimtemplate", channel_of(name)) else "none"

    pods.wait(lacking, f"the template of domain {name}")
    return uid_of(pods, name)


def uid_of(pods: Kubectl, name: str) -> str:
    """UID of a domain."""
    return str(pods.get("computedomain", name)["metadata"]["uid"])


def worker(name: str, template: str, node: str = "") -> Json:
    """A pod that lists its channels and idles; on one node, if that is said."""
    pod = workloads.pod(name, templates=[template])
    pod["spec"]["containers"][0]["command"] = LIST_AND_IDLE
    if node:
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return pod


def claim(name: str, parameters: Mapping[str, Any]) -> Json:
    """A channel claim that a user wrote by hand, with a config of the channel's kind."""
    config = {
        "driver": names.COMPUTE_DOMAIN_DRIVER,
        "parameters": {
            "apiVersion": names.CONFIG_API_VERSION,
            "kind": "ComputeDomainChannelConfig",
            **parameters,
        },
    }
    manifest = workloads.claim(
        name, {"name": "channel", "exactly": {"deviceClassName": names.CHANNEL_CLASS}}
    )
    manifest["spec"]["devices"]["config"] = [{"requests": ["channel"], "opaque": config}]
    return manifest


def channels(pods: Kubectl, pod: str) -> set[str]:
    """The channels that a container has now."""
    return set(pods.exec(pod, "ls", CHANNELS).split())


def status(pods: Kubectl, name: str) -> Json:
    """Of a domain; empty while it has none."""
    found: Json = pods.get("computedomain", name).get("status", {})
    return found


def not_ready(pods: Kubectl, name: str, members: int) -> str | None:
    """What a domain lacks to be Ready with so many nodes that are all Ready."""
    seen = status(pods, name)
    nodes = seen.get("nodes", [])
    is_ready = seen.get("status") == "Ready" and all(one["status"] == "Ready" for one in nodes)
    return None if is_ready and len(nodes) == members else json.dumps(seen)


def wait_ready(pods: Kubectl, name: str, members: int, timeout_s: float = 30) -> None:
    """Until a domain is Ready with so many nodes."""
    what = f"domain {name} to be Ready with {members} nodes"
    pods.wait(lambda: not_ready(pods, name, members), what, timeout_s)


def places(pods: Kubectl, name: str) -> dict[str, int]:
    """Node → its index in its clique, as the domain's status has them."""
    return {one["name"]: one["index"] for one in status(pods, name).get("nodes", [])}


@dataclass(frozen=True)
class Domain:
    """What there is of one domain below the user's namespace."""

    cluster: Cluster
    uid: str

    def daemons(self) -> dict[str, str]:
        """Node → the daemon's pod there that is not being deleted."""
        return {
            pod["spec"]["nodeName"]: pod["metadata"]["name"]
            for pod in self.labelled("pods")
            if "deletionTimestamp" not in pod["metadata"] and "nodeName" in pod["spec"]
        }

    def entries(self) -> list[Json]:
        """What the daemons say of themselves, of every clique."""
        cliques = self.labelled("computedomaincliques")
        return [entry for each in cliques for entry in each.get("daemons", [])]

    def imex(self, node: str) -> Json:
        """What nvidia-imex says of the domain on a node; empty where nobody answers."""
        pod = self.daemons().get(node)
        if pod is None:
            return {}
        argv = ["exec", pod, "--", "nvidia-imex-ctl", "-c", "/imexd/imexd.cfg", "-N", "-j"]
        done = self.cluster.driver.attempt(*argv)
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}

    def connected(self, node: str) -> set[str]:
        """The names of those whom that node's IMEX has a connection to, itself included."""
        seen = self.imex(node).get("nodes", {})
        mine = [each for each in seen.values() if each["local"]]
        links = mine[0]["connections"].values() if mine else ()
        return {each["host"] for each in links if each["status"] == "CONNECTED"}

    def nodes(self) -> set[str]:
        """The nodes that carry its label."""
        return {each["metadata"]["name"] for each in self.labelled("nodes")}

    def labelled(self, kind: str) -> list[Json]:
        """The driver's objects of a kind with the domain's label."""
        chosen = f"{names.DOMAIN_LABEL}={self.uid}"
        found: list[Json] = self.cluster.driver.get(kind, "", "-l", chosen)
        return found

    def left(self) -> str | None:
        """What there still is of a domain that was deleted: objects, labels, claims; else None."""
        found = [
            f"{kind} {each['metadata']['name']}"
            for kind in ("daemonsets", "resourceclaimtemplates", "computedomaincliques")
            for each in self.labelled(kind)
        ]
        found += [f"pod {each['metadata']['name']}" for each in self.labelled("pods")]
        found += [f"label of {node}" for node in self.nodes()]
        claims = self.cluster.driver.get("resourceclaims")
        found += [
            f"claim {each['metadata']['name']}" for each in claims if self.uid in json.dumps(each)
        ]
        return ", ".join(found) or None

    def wait_gone(self, timeout_s: float = GONE_S) -> None:
        """Until nothing is left of it."""
        self.cluster.kubectl.wait(self.left, f"nothing to be left of domain {self.uid}", timeout_s)


def held(cluster: Cluster, node: str) -> list[str]:
    """The specs of prepared claims on a node: name and time of writing, which a new one changes."""
    script = f"cd {CDI} && stat -c '%n %Y %i' k8s.compute-domain.nvidia.com-claim_* 2>/dev/null"
    lines = cluster.inside(node, "sh", "-c", f"{script} || true").splitlines()
    return sorted(lines)


def wait_released(cluster: Cluster, timeout_s: float = 30) -> None:
    """Until no claim is prepared on any node."""

    def lacking(node: str) -> str | None:
        return " ".join(held(cluster, node)) or None

    for node in cluster.nodes():
        cluster.kubectl.wait(partial(lacking, node), f"nothing to be prepared on {node}", timeout_s)


def controllers(cluster: Cluster) -> dict[str, bool]:
    """The controller's pods, and whether each is ready."""
    pods = cluster.driver.get("pods", "", "-l", CONTROLLER)
    return {
        pod["metadata"]["name"]: all(
            each["ready"] for each in pod["status"].get("containerStatuses", [{"ready": False}])
        )
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
    }


def leader(cluster: Cluster) -> str:
    """The pod that holds the controllers' lease; empty for none."""
    lease = cluster.driver.get("lease", CONTROLLER_NAME)
    holder = str(lease["spec"].get("holderIdentity") or "")
    return next((name for name in controllers(cluster) if holder.startswith(name)), "")


def refusals(pods: Kubectl, pod: str) -> list[str]:
    """What the kubelet says on a pod about prepares that failed."""
    events = pods.events(pod)
    return [message for reason, message in events if reason == "FailedPrepareDynamicResources"]


def wait_refused(pods: Kubectl, pod: str, timeout_s: float = 30) -> str:
    """Until a prepare of a pod's claims has failed; the kubelet's words."""

    def lacking() -> str | None:
        return None if refusals(pods, pod) else str(pods.events(pod)[-3:])

    pods.wait(lacking, f"pod {pod} to be refused", timeout_s)
    return refusals(pods, pod)[-1]
