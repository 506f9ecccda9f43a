"""Records which nodes of each domain were Ready, and which nodes its status called Ready.

Beside it is recorded what Kubernetes itself says of the same pods, which shows how much of a delay
is the machine's.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from nvdra_api import names

from nvdra_testing.cluster.api_client import ApiClient, Json
from nvdra_testing.cluster.installation import NAMESPACE
from nvdra_testing.control_plane.domain_objects import API
from nvdra_testing.random_domains import timeline
from nvdra_testing.random_domains.timeline import Away, Change, Nodes, Untruth

READY = "Ready"


@dataclass
class Recording:
    """What was seen of the domains of one namespace and of their daemons' pods, by domain UID.

    Attributes:
        true: Which nodes had a daemon whose pod was Ready.
        told: Which nodes the status called Ready.
        names: The name of each domain.
        counted: How many daemons Kubernetes itself called ready, in the status of their DaemonSet.
        deleted: When each domain was first seen to be deleted.
        contradictions: Statuses that contradict themselves.
    """

    true: dict[str, list[Change]] = field(default_factory=lambda: defaultdict(list))
    told: dict[str, list[Change]] = field(default_factory=lambda: defaultdict(list))
    counted: dict[str, list[Change]] = field(default_factory=lambda: defaultdict(list))
    names: dict[str, str] = field(default_factory=dict)
    deleted: dict[str, float] = field(default_factory=dict)
    contradictions: list[str] = field(default_factory=list)
    _ready_pods: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))

    def take_domain(self, event: str, domain: Json) -> None:
        """Note a version of a domain."""
        meta, status = domain["metadata"], domain.get("status", {})
        uid, now = meta["uid"], time.monotonic()
        self.names[uid] = meta["name"]
        if event == "DELETED" or "deletionTimestamp" in meta:
            self.deleted.setdefault(uid, now)
            return
        ready = [each["name"] for each in status.get("nodes", []) if each["status"] == READY]
        _note(self.told[uid], now, frozenset(ready))
        if status and not _agrees(status, domain["spec"].get("numNodes", 0)):
            self.contradictions.append(f"{meta['name']}: {status}")

    def take_pod(self, event: str, pod: Json) -> None:
        """Note a version of a pod in the driver's namespace."""
        meta = pod["metadata"]
        uid = meta.get("labels", {}).get(names.DOMAIN_LABEL)
        if uid is None:
            return
        conditions = {each["type"]: each for each in pod["status"].get("conditions", [])}
        is_ready = conditions.get(READY, {}).get("status") == "True"
        pods = self._ready_pods[uid]
        if is_ready and event != "DELETED" and "deletionTimestamp" not in meta:
            pods[meta["uid"]] = pod["spec"]["nodeName"]
        else:
            pods.pop(meta["uid"], None)
        _note(self.true[uid], time.monotonic(), frozenset(pods.values()))

    def take_daemon_set(self, _event: str, daemon_set: Json) -> None:
        """Note a version of a DaemonSet in the driver's namespace."""
        uid = daemon_set["metadata"].get("labels", {}).get(names.DOMAIN_LABEL)
        if uid is not None:
            ready = daemon_set.get("status", {}).get("numberReady", 0)
            _note(self.counted[uid], time.monotonic(), _as_nodes(ready))

    def untruths(
        self, away: list[Away], allowed_s: float, *, is_beyond_delay: bool = False
    ) -> dict[str, list[Untruth]]:
        """The statuses that were not true for too long, by the domain's name.

        Args:
            away: Times at which nobody could write a status.
            allowed_s: How late a status may be.
            is_beyond_delay: Whether that is beyond `delay_s`: where Kubernetes itself is late with
                the pods, so is all that follows from them.
        """
        found = {}
        for uid, name in self.names.items():
            allowed = allowed_s + (self.delay_s(uid, away) if is_beyond_delay else 0.0)
            found[name] = timeline.untruths(
                self.true[uid], self.told[uid], away, allowed, self._ended(uid)
            )
        return {name: each for name, each in found.items() if each}

    def delay_s(self, uid: str, away: list[Away]) -> float:
        """The longest time in which the status of the pods' DaemonSet was not true any more."""
        ready = [Change(each.at, _as_nodes(len(each.nodes))) for each in self.true[uid]]
        wrong = timeline.untruths(ready, self.counted[uid], away, 0.0, self._ended(uid))
        return max((each.seconds for each in wrong), default=0.0)

    def _ended(self, uid: str) -> float:
        return self.deleted.get(uid, time.monotonic())

    def was_ready(self) -> set[str]:
        """The names of the domains of which some node was Ready at some time."""
        return {name for uid, name in self.names.items() if any(c.nodes for c in self.told[uid])}


def _note(changes: list[Change], now: float, nodes: Nodes) -> None:
    if not changes or changes[-1].nodes != nodes:
        changes.append(Change(now, nodes))


def _as_nodes(count: int) -> Nodes:
    """A number of nodes in place of their names."""
    return frozenset(map(str, range(count)))


def _agrees(status: Json, wanted: int) -> bool:
    """Whether the status as a whole agrees with that of its nodes."""
    nodes = status.get("nodes", [])
    is_ready = len(nodes) >= wanted and all(each["status"] == READY for each in nodes)
    return bool((status["status"] == READY) == is_ready)


@contextmanager
def recorded(client: ApiClient, namespace: str) -> Iterator[Recording]:
    """Record the domains of a namespace, and the daemons of all domains, while the block runs."""
    recording = Recording()
    domains = f"{API}/namespaces/{namespace}/computedomains"
    with ExitStack() as stack:
        stack.enter_context(client.watch(domains, recording.take_domain))
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        stack.enter_context(client.watch(pods, recording.take_pod))
        daemon_sets = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
        stack.enter_context(client.watch(daemon_sets, recording.take_daemon_set))
        yield recording
