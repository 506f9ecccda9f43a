# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains in a lab: creating them, and reading their state from the API and the nodes.

Objects are JSON. A domain is identified by its UID, as in its children and in the node labels.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from nvdra_api import names

from nvdra_testing.cluster import workloads
from nvdra_testing.cluster.installation import RELEASE, Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.control_plane import domain_objects

CDI_DIR = "/var/run/cdi"
DOMAINS_DIR = f"/var/lib/kubelet/plugins/{names.COMPUTE_DOMAIN_DRIVER}/domains"
KNOWN_CLIQUE = f"/var/lib/kubelet/plugins/{names.COMPUTE_DOMAIN_DRIVER}/clique.json"
CHANNELS_DIR = "/dev/nvidia-caps-imex-channels"
LIST_AND_IDLE = ["sh", "-c", f"ls {CHANNELS_DIR}; trap exit TERM; sleep infinity & wait"]
CONTROLLER_SELECTOR = (
    f"app.kubernetes.io/name=nvdra-cd-controller,app.kubernetes.io/instance={RELEASE}"
)
CONTROLLER_NAME = f"{RELEASE}-nvdra-cd-controller"
DELETE_TIMEOUT_S = 60
RACK_PROFILE = "gb200-nvl72"
"""The hardware of a node that is a tray of a rack."""

Json = dict[str, Any]


def restart_with_fabric(rack: Cluster, node: str, *flags: str) -> None:
    """Give all GPUs of a node another fabric, as if it had been booted with it.

    The plugin keeps a clique for the boot, because GPUs that are reset lose theirs for a while.
    """
    rack.simctl(node, "fabric", "all", *flags)
    rack.exec_on_node(node, "rm", "-f", KNOWN_CLIQUE)
    rack.restart_plugin(node)


def template_name(domain: str) -> str:
    """The name of the workload claim template of a domain of `create_domain`."""
    return f"{domain}-channel"


def create_domain(pods: Kubectl, name: str, *, mode: str = "Single", nodes: int = 0) -> str:
    """Create a domain, wait for its workload claim template, and return its UID."""
    manifest = domain_objects.domain(name, template_name(name), numNodes=nodes)
    manifest["spec"]["channel"]["allocationMode"] = mode
    pods.apply(manifest)

    def lacking() -> str | None:
        return None if pods.exists("resourceclaimtemplate", template_name(name)) else "none"

    pods.wait(lacking, f"the template of domain {name}")
    return uid_of(pods, name)


def uid_of(pods: Kubectl, name: str) -> str:
    """The UID of a domain."""
    return str(pods.get("computedomain", name)["metadata"]["uid"])


def channel_pod(name: str, template: str, node: str = "") -> Json:
    """A pod that lists its channels and then idles; on the given node, if any."""
    pod = workloads.pod(name, templates=[template])
    pod["spec"]["containers"][0]["command"] = LIST_AND_IDLE
    if node:
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return pod


def run_on(pods: Kubectl, domain: str, nodes: Iterable[str], timeout_s: float = 100) -> None:
    """Run a `channel_pod` of a domain on each node, under the node's name, and wait for them."""
    nodes = tuple(nodes)
    for node in nodes:
        pods.apply(channel_pod(node, template_name(domain), node))
    pods.wait_running(*nodes, timeout_s=timeout_s)


def channel_claim(name: str, parameters: Mapping[str, Any]) -> Json:
    """A channel claim as a user writes it by hand, with a config of the channel's kind."""
    config = {
        "driver": names.COMPUTE_DOMAIN_DRIVER,
        "parameters": {
            "apiVersion": names.NVIDIA_API_VERSION,
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
    """The channels in a container."""
    return set(pods.exec(pod, "ls", CHANNELS_DIR).split())


def status(pods: Kubectl, name: str) -> Json:
    """The status of a domain; empty while it has none."""
    found: Json = pods.get("computedomain", name).get("status", {})
    return found


def not_ready(pods: Kubectl, name: str, members: int) -> str | None:
    """Why a domain is not yet Ready with this many Ready nodes; None if it is."""
    seen = status(pods, name)
    nodes = seen.get("nodes", [])
    is_ready = seen.get("status") == "Ready" and all(one["status"] == "Ready" for one in nodes)
    return None if is_ready and len(nodes) == members else json.dumps(seen)


def wait_ready(pods: Kubectl, name: str, members: int, timeout_s: float = 30) -> None:
    """Wait until a domain is Ready with this many nodes."""
    what = f"domain {name} to be Ready with {members} nodes"
    pods.wait(lambda: not_ready(pods, name, members), what, timeout_s)


def not_degraded(pods: Kubectl, name: str, reason: str, *words: str) -> str | None:
    """The condition Degraded unless it is True for the reason and has these words; else None."""
    seen = _degraded(pods, name)
    is_so = seen.get("status") == "True" and seen["reason"] == reason
    return None if is_so and all(word in seen["message"] for word in words) else json.dumps(seen)


def still_degraded(pods: Kubectl, name: str) -> str | None:
    """The condition Degraded unless it is False."""
    seen = _degraded(pods, name)
    return None if seen.get("status") == "False" else json.dumps(seen)


def _degraded(pods: Kubectl, name: str) -> Json:
    conditions = status(pods, name).get("conditions", [])
    return next((each for each in conditions if each["type"] == "Degraded"), {})


def not_described(pods: Kubectl, name: str, *words: str, kind: str = "computedomain") -> str | None:
    """The output of `kubectl describe` if it lacks any of the words; None otherwise."""
    shown = pods.run("describe", kind, name)
    return None if all(word in shown for word in words) else shown


def node_indexes(pods: Kubectl, name: str) -> dict[str, int]:
    """Node → its index in its clique, from the domain's status."""
    return {one["name"]: one["index"] for one in status(pods, name).get("nodes", [])}


@dataclass(frozen=True)
class Domain:
    """The objects and node state of one domain, outside of the user's namespace."""

    cluster: Cluster
    uid: str

    def daemons(self) -> dict[str, str]:
        """Node → its daemon pod, without pods that are being deleted."""
        return {
            pod["spec"]["nodeName"]: pod["metadata"]["name"]
            for pod in self.objects("pods")
            if "deletionTimestamp" not in pod["metadata"] and "nodeName" in pod["spec"]
        }

    def entries(self) -> list[Json]:
        """The daemons' entries in all cliques."""
        cliques = self.objects("computedomaincliques")
        return [entry for each in cliques for entry in each.get("daemons", [])]

    def imex_status(self, node: str) -> Json:
        """The status that nvidia-imex reports on a node; empty if it does not answer."""
        pod = self.daemons().get(node)
        if pod is None:
            return {}
        argv = ["exec", pod, "--", "nvidia-imex-ctl", "-c", "/imexd/imexd.cfg", "-N", "-j"]
        done = self.cluster.driver_namespace.run_unchecked(*argv)
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}

    def wait_imex_status(self, node: str) -> Json:
        """Wait until nvidia-imex answers on a node, and return its status."""
        answer: Json = {}

        def lacking() -> str | None:
            answer.update(self.imex_status(node))
            return None if answer else "no answer"

        self.cluster.kubectl.wait(lacking, f"the IMEX of {node} to answer")
        return answer

    def connected_peers(self, node: str) -> set[str]:
        """The hosts to which the IMEX of a node is connected, itself included."""
        pod = self.daemons().get(node)
        seen = self.imex_status(node).get("nodes", {})
        mine = [each for each in seen.values() if each["hostName"] == pod]
        links = mine[0]["connections"].values() if mine else ()
        return {each["host"] for each in links if each["status"] == "CONNECTED"}

    def labelled_nodes(self) -> set[str]:
        """The nodes with the domain's label."""
        return {each["metadata"]["name"] for each in self.objects("nodes")}

    def objects(self, kind: str) -> list[Json]:
        """The objects of a kind in the driver's namespace that have the domain's label."""
        chosen = f"{names.DOMAIN_LABEL}={self.uid}"
        found: list[Json] = self.cluster.driver_namespace.get(kind, "", "-l", chosen)
        return found

    def remaining(self) -> str | None:
        """What remains of a deleted domain: objects, labels and claims; None if nothing does."""
        found = [
            f"{kind} {each['metadata']['name']}"
            for kind in (
                "daemonsets",
                "networkpolicies",
                "resourceclaimtemplates",
                "computedomaincliques",
            )
            for each in self.objects(kind)
        ]
        found += [f"pod {each['metadata']['name']}" for each in self.objects("pods")]
        found += [f"label of {node}" for node in self.labelled_nodes()]
        claims = self.cluster.driver_namespace.get("resourceclaims")
        found += [
            f"claim {each['metadata']['name']}" for each in claims if self.uid in json.dumps(each)
        ]
        return ", ".join(found) or None

    def wait_gone(self, timeout_s: float = DELETE_TIMEOUT_S) -> None:
        """Wait until nothing remains of the domain."""
        self.cluster.kubectl.wait(
            self.remaining, f"nothing to be left of domain {self.uid}", timeout_s
        )


def claim_specs(cluster: Cluster, node: str) -> list[str]:
    """The CDI specs of prepared claims on a node: name, size and time of writing."""
    script = f"cd {CDI_DIR} && stat -c '%n %Y %i' k8s.compute-domain.nvidia.com-claim_* 2>/dev/null"
    lines = cluster.exec_on_node(node, "sh", "-c", f"{script} || true").splitlines()
    return sorted(lines)


def prepare_counts(cluster: Cluster, node: str) -> dict[str, int]:
    """The number of prepares that a node's plugin has answered, by kind of device."""
    counted: dict[str, int] = {"channel": 0, "daemon": 0}
    for sample, value in cluster.metrics(node).items():
        found = _PREPARES.match(sample)
        if found and 'operation="prepare"' in sample:
            counted[found["kind"]] = counted.get(found["kind"], 0) + int(value)
    return counted


def failed_prepare_count(cluster: Cluster, node: str, reason: str) -> int:
    """The number of prepares that a node's plugin has failed for a reason."""
    words = ('operation="prepare"', f'reason="{reason}"')
    return sum(
        int(value)
        for sample, value in cluster.metrics(node).items()
        if _PREPARES.match(sample) and all(word in sample for word in words)
    )


_PREPARES = re.compile(r'nvdra_claim_operation_seconds_count\{.*device_kind="(?P<kind>[^"]*)".*\}')


def node_leftovers(cluster: Cluster, node: str) -> str | None:
    """What a node still has of claims: CDI specs, records, the label; None if it has nothing."""
    found = claim_specs(cluster, node)
    try:
        metrics = cluster.metrics(node)
    except AssertionError as error:  # the API server did not reach the plugin
        return str(error)
    for sample, value in metrics.items():
        if sample.startswith("nvdra_claims_prepared{") and value:
            found.append(f"{sample} {int(value)}")
    label = cluster.kubectl.get("node", node)["metadata"]["labels"].get(names.DOMAIN_LABEL)
    if label:
        found.append(f"the label of domain {label}")
    return "; ".join(found) or None


@contextmanager
def dumb_imex(rack: Cluster) -> Iterator[None]:
    """No IMEX reports READY while the block runs."""
    try:
        for node in rack.nodes():
            rack.simctl(node, "imex", "set", "--never-ready")
        yield
    finally:
        for node in rack.nodes():
            rack.simctl(node, "imex", "clear")


def wait_released(cluster: Cluster, timeout_s: float = DELETE_TIMEOUT_S) -> None:
    """Wait until no claim is prepared on any node: no spec, no record, no label."""
    for node in cluster.nodes():
        what = f"nothing to be prepared on {node}"
        cluster.kubectl.wait(partial(node_leftovers, cluster, node), what, timeout_s)


def wait_nothing_left(cluster: Cluster, timeout_s: float = DELETE_TIMEOUT_S) -> None:
    """Wait until neither the API nor any node has anything left of a domain.

    Plugins remove the directories of domains at their start or within ten minutes, so they are
    restarted.
    """
    wait_released(cluster, timeout_s)
    for node in cluster.nodes():
        cluster.restart_plugin(node)
        what = f"no directory and no record of a domain to be on {node}"
        cluster.kubectl.wait(partial(_state_leftovers, cluster, node), what, timeout_s)
    cluster.kubectl.wait(partial(_object_leftovers, cluster), "no object of a domain", timeout_s)


def _state_leftovers(cluster: Cluster, node: str) -> str | None:
    """The domain directories on a node and the claims in the plugin's state file."""
    found = cluster.exec_on_node(node, "sh", "-c", f"ls {DOMAINS_DIR} 2>/dev/null || true").split()
    told = cluster.driver_namespace.exec(
        cluster.plugin_pod(node), "nvdra-cd-plugin", "status", "-o", "json"
    )
    found += [json.dumps(claim) for claim in json.loads(told)["claims"]]
    return ", ".join(found) or None


def _object_leftovers(cluster: Cluster) -> str | None:
    """All objects of domains in the API server."""
    kinds = ("computedomains", "computedomaincliques")
    labelled = ("daemonsets", "pods", "resourceclaimtemplates", "nodes")
    found = [cluster.kubectl.run("get", kind, "-A", "-o", "name") for kind in kinds]
    chosen = ["-A", "-l", names.DOMAIN_LABEL, "-o", "name"]
    found += [cluster.kubectl.run("get", kind, *chosen) for kind in labelled]
    found.append(cluster.driver_namespace.run("get", "resourceclaims", "-o", "name"))
    return " ".join(" ".join(found).split()) or None


def controller_pods(cluster: Cluster) -> dict[str, bool]:
    """The controller's pods, and whether each is ready."""
    pods = cluster.driver_namespace.get("pods", "", "-l", CONTROLLER_SELECTOR)
    return {
        pod["metadata"]["name"]: all(
            each["ready"] for each in pod["status"].get("containerStatuses", [{"ready": False}])
        )
        for pod in workloads.living(pods)
    }


def controller_deployment(cluster: Cluster) -> Json:
    """The controller's Deployment."""
    found: Json = cluster.driver_namespace.get("deployment", CONTROLLER_NAME)
    return found


def scale_controller(cluster: Cluster, replicas: int) -> None:
    """Set the number of controllers; with none, wait until also those that are ending are gone."""
    words = ("deployment", CONTROLLER_NAME, f"--replicas={replicas}")
    cluster.driver_namespace.run("scale", *words)
    if not replicas:
        chosen = ("get", "pods", "-l", CONTROLLER_SELECTOR, "-o", "name")
        cluster.driver_namespace.wait(
            lambda: cluster.driver_namespace.run(*chosen) or None, "no controller to be left"
        )


def daemon_image(cluster: Cluster) -> str:
    """The image that the controller gives its daemons."""
    (container,) = controller_deployment(cluster)["spec"]["template"]["spec"]["containers"]
    return str(next(each["value"] for each in container["env"] if each["name"] == "IMAGE_NAME"))


def set_controller_env(cluster: Cluster, *variables: str) -> None:
    """Change environment variables of the controller, and wait until a new replica is ready.

    The old replica may still be running: see `wait_leader`.
    """
    what = f"deployment/{CONTROLLER_NAME}"
    cluster.driver_namespace.run("set", "env", what, *variables)
    cluster.driver_namespace.run("rollout", "status", what, "--timeout=120s", timeout_s=130)


def leader(cluster: Cluster) -> str:
    """The pod that holds the controller's lease; empty if no pod does."""
    lease = cluster.driver_namespace.get("lease", CONTROLLER_NAME)
    holder = str(lease["spec"].get("holderIdentity") or "")
    return next((name for name in controller_pods(cluster) if holder.startswith(name)), "")


def wait_leader(cluster: Cluster) -> str:
    """Wait until a controller pod that is not being deleted is the leader, and return it."""
    cluster.driver_namespace.wait(
        lambda: None if leader(cluster) else "nobody does", "somebody to lead"
    )
    return leader(cluster)


def listed_channels(pods: Kubectl, pod: str, least: int = 1) -> list[str]:
    """Wait until a `channel_pod` has printed this many channels, and return them."""

    def lacking() -> str | None:
        count = len(pods.logs(pod).split())
        return None if count >= least else f"{count}"

    pods.wait(lacking, f"{least} lines of pod {pod}")
    return pods.logs(pod).split()


def prepare_errors(pods: Kubectl, pod: str) -> list[str]:
    """The messages of the kubelet's events about failed prepares of a pod."""
    events = pods.events(pod)
    return [message for reason, message in events if reason == "FailedPrepareDynamicResources"]


def wait_prepare_error(pods: Kubectl, pod: str, timeout_s: float = 30) -> str:
    """Wait until a prepare of a pod's claims has failed, and return the kubelet's message."""

    def lacking() -> str | None:
        return None if prepare_errors(pods, pod) else str(pods.events(pod)[-3:])

    pods.wait(lacking, f"pod {pod} to be refused", timeout_s)
    return prepare_errors(pods, pod)[-1]
