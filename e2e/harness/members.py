"""Compute domains in a lab: what a user applies, and what there is of a domain, from API to node.

Objects are JSON. A domain is named by its UID, because its children and the labels of nodes are.
"""

import json
import re
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
DIRECTORIES = f"/var/lib/kubelet/plugins/{names.COMPUTE_DOMAIN_DRIVER}/domains"
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


def not_told(pods: Kubectl, name: str, *words: str, kind: str = "computedomain") -> str | None:
    """What `kubectl describe` shows of a domain, or of another object, as long as a word lacks."""
    shown = pods.run("describe", kind, name)
    return None if all(word in shown for word in words) else shown


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


def prepares(cluster: Cluster, node: str) -> dict[str, int]:
    """How many prepares the plugin of a node has answered since its start, by kind of device."""
    counted: dict[str, int] = {"channel": 0, "daemon": 0}
    for sample, value in cluster.metrics(node).items():
        found = _PREPARES.match(sample)
        if found and 'operation="prepare"' in sample:
            counted[found["kind"]] = counted.get(found["kind"], 0) + int(value)
    return counted


def refused_prepares(cluster: Cluster, node: str, reason: str) -> int:
    """How many prepares the plugin of a node has refused since its start, for a reason."""
    words = ('operation="prepare"', f'reason="{reason}"')
    return sum(
        int(value)
        for sample, value in cluster.metrics(node).items()
        if _PREPARES.match(sample) and all(word in sample for word in words)
    )


_PREPARES = re.compile(r'nvdra_claim_operation_seconds_count\{.*device_kind="(?P<kind>[^"]*)".*\}')


def remains(cluster: Cluster, node: str) -> str | None:
    """What there is of claims on a node: CDI specs, records, the label; None for nothing."""
    found = held(cluster, node)
    for sample, value in cluster.metrics(node).items():
        if sample.startswith("nvdra_claims_prepared{") and value:
            found.append(f"{sample} {int(value)}")
    label = cluster.kubectl.get("node", node)["metadata"]["labels"].get(names.DOMAIN_LABEL)
    if label:
        found.append(f"the label of domain {label}")
    return "; ".join(found) or None


def wait_released(cluster: Cluster, timeout_s: float = 30) -> None:
    """Until no claim is prepared on any node: no spec, no record, no label."""
    for node in cluster.nodes():
        what = f"nothing to be prepared on {node}"
        cluster.kubectl.wait(partial(remains, cluster, node), what, timeout_s)


def wait_nothing_left(cluster: Cluster, timeout_s: float = 30) -> None:
    """Until nothing tells that there ever was a domain: nothing in the API, nothing on a node.

    Directories of domains go at a plugin's start or within ten minutes, so plugins start anew.
    """
    wait_released(cluster, timeout_s)
    for node in cluster.nodes():
        cluster.restart_plugin(node)
        what = f"no directory and no record of a domain to be on {node}"
        cluster.kubectl.wait(partial(_kept, cluster, node), what, timeout_s)
    cluster.kubectl.wait(partial(_objects, cluster), "no object of a domain", timeout_s)


def _kept(cluster: Cluster, node: str) -> str | None:
    """Directories of domains, and claims in the plugin's own books."""
    found = cluster.inside(node, "sh", "-c", f"ls {DIRECTORIES} 2>/dev/null || true").split()
    told = cluster.driver.exec(cluster.plugin(node), "nvdra-cd-plugin", "status", "-o", "json")
    found += [json.dumps(claim) for claim in json.loads(told)["claims"]]
    return ", ".join(found) or None


def _objects(cluster: Cluster) -> str | None:
    """What of domains the API server holds, wherever it is."""
    kinds = ("computedomains", "computedomaincliques")
    labelled = ("daemonsets", "pods", "resourceclaimtemplates", "nodes")
    found = [cluster.kubectl.run("get", kind, "-A", "-o", "name") for kind in kinds]
    chosen = ["-A", "-l", names.DOMAIN_LABEL, "-o", "name"]
    found += [cluster.kubectl.run("get", kind, *chosen) for kind in labelled]
    found.append(cluster.driver.run("get", "resourceclaims", "-o", "name"))
    return " ".join(" ".join(found).split()) or None


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


def controller(cluster: Cluster) -> Json:
    """The controller's Deployment."""
    found: Json = cluster.driver.get("deployment", CONTROLLER_NAME)
    return found


def set_controller(cluster: Cluster, *variables: str) -> None:
    """Change variables of the controller, and wait until one with these is ready.

    The one before it may be on its way out still, and at work: see `wait_leader`.
    """
    what = f"deployment/{CONTROLLER_NAME}"
    cluster.driver.run("set", "env", what, *variables)
    cluster.driver.run("rollout", "status", what, "--timeout=30s", timeout_s=40)


def leader(cluster: Cluster) -> str:
    """The pod that holds the controllers' lease; empty for none."""
    lease = cluster.driver.get("lease", CONTROLLER_NAME)
    holder = str(lease["spec"].get("holderIdentity") or "")
    return next((name for name in controllers(cluster) if holder.startswith(name)), "")


def wait_leader(cluster: Cluster) -> str:
    """Until a controller leads that is not on its way out; its pod."""
    cluster.driver.wait(lambda: None if leader(cluster) else "nobody does", "somebody to lead")
    return leader(cluster)


def listed(pods: Kubectl, pod: str, least: int = 1) -> list[str]:
    """The channels that a `worker` has printed, once there are so many: it runs a moment before."""

    def lacking() -> str | None:
        count = len(pods.logs(pod).split())
        return None if count >= least else f"{count}"

    pods.wait(lacking, f"{least} lines of pod {pod}")
    return pods.logs(pod).split()


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
