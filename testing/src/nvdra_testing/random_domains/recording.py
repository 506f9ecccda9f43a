# SPDX-License-Identifier: Apache-2.0
"""Records which nodes of each domain were Ready, and which nodes its status called Ready.

A node is Ready while its daemon says so, and the daemon's pod is Ready. Beside it is recorded what
Kubernetes itself says of the same pods, which shows how much of a delay is the machine's.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime

from nvdra_api import names
from nvdra_runtime.computedomain import announcements

from nvdra_testing.cluster.api_client import ApiClient, Json
from nvdra_testing.cluster.installation import NAMESPACE
from nvdra_testing.control_plane.domain_objects import API
from nvdra_testing.random_domains import timeline
from nvdra_testing.random_domains.timeline import Away, Change, Untruth

READY = "Ready"
LATE_BESIDE_OTHERS_S = 8.0
"""How late a status may be beyond Kubernetes' own, where four labs share two cores."""

Timelines = dict[str, dict[str, list[Change]]]
"""By the domain's UID and the node's name."""


def _timelines() -> Timelines:
    return defaultdict(lambda: defaultdict(list))


@dataclass
class Recording:
    """What was seen of the domains of one namespace and of their daemons' pods.

    Attributes:
        up: Whether the pod of a node's daemon was Ready, as Kubernetes says.
        true: Whether the daemon said that it is Ready, and its pod works: it is Ready, or only its
            readiness probe does not say so yet, which asks the daemon some seconds later.
        told: Whether the status called the node Ready.
        counted: Whether the status of the DaemonSet counted so many Ready daemons; a number is in
            place of the node's name.
        names: The name of each domain, by UID.
        deleted: When each domain was first seen to be deleted, by UID.
        contradictions: Statuses that contradict themselves.
        starts_s: How long each daemon took from the start of its container until it said that it
            is Ready.
    """

    up: Timelines = field(default_factory=_timelines)
    true: Timelines = field(default_factory=_timelines)
    told: Timelines = field(default_factory=_timelines)
    counted: Timelines = field(default_factory=_timelines)
    names: dict[str, str] = field(default_factory=dict)
    deleted: dict[str, float] = field(default_factory=dict)
    contradictions: list[str] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    _pods: dict[tuple[str, str], str] = field(default_factory=dict)
    _words: dict[tuple[str, str], "_Words"] = field(default_factory=dict)

    def take_domain(self, event: str, domain: Json) -> None:
        """Note a version of a domain."""
        meta, status = domain["metadata"], domain.get("status", {})
        uid, now = meta["uid"], time.monotonic()
        self.names[uid] = meta["name"]
        if event == "DELETED" or "deletionTimestamp" in meta:
            self.deleted.setdefault(uid, now)
            return
        ready = {each["name"] for each in status.get("nodes", []) if each["status"] == READY}
        for node in ready | set(self.told[uid]):
            _note(self.told[uid][node], Change(now, node in ready))
        if status and not _agrees(status, domain["spec"].get("numNodes", 0)):
            self.contradictions.append(f"{meta['name']}: {status}")

    def take_pod(self, event: str, pod: Json) -> None:
        """Note a version of a pod in the driver's namespace."""
        meta, node = pod["metadata"], pod["spec"].get("nodeName", "")
        uid = meta.get("labels", {}).get(names.DOMAIN_LABEL)
        if uid is None or not node:
            return
        now = time.monotonic()
        conditions = {each["type"]: each for each in pod["status"].get("conditions", [])}
        is_gone = event == "DELETED" or "deletionTimestamp" in meta
        is_up = conditions.get(READY, {}).get("status") == "True" and not is_gone
        works = is_up or (not is_gone and _is_awaiting_probe(pod))
        if not works and self._pods.get((uid, node), meta["uid"]) != meta["uid"]:
            return  # of a pod that is not the node's current one
        self._pods[uid, node] = meta["uid"]
        words = _Words.of(pod).after(self._words.get((uid, node)))
        self._words[uid, node] = words
        said = announcements.from_annotations(meta.get("annotations") or {})
        is_new = words.text != words.of_former_container
        is_true = works and is_new and said is not None and said.is_ready and not said.has_left
        started = _started(pod, now)
        _note(self.up[uid][node], Change(now, is_up, started if is_up else None))
        change = Change(now, is_true, started if is_true else None)
        if _note(self.true[uid][node], change) and is_true and started is not None:
            self.starts_s.append(now - started)

    def take_daemon_set(self, _event: str, daemon_set: Json) -> None:
        """Note a version of a DaemonSet in the driver's namespace."""
        uid = daemon_set["metadata"].get("labels", {}).get(names.DOMAIN_LABEL)
        if uid is not None:
            count = daemon_set.get("status", {}).get("numberReady", 0)
            _note_count(self.counted[uid], time.monotonic(), count)

    def untruths(
        self, away: list[Away], allowed_s: float, *, is_beyond_delay: bool = False
    ) -> dict[str, list[Untruth]]:
        """The statuses that were not true for too long, by the names of domain and node.

        Args:
            away: Times at which nobody could write a status.
            allowed_s: How late a status may be.
            is_beyond_delay: Whether that is beyond `delay_s`: where Kubernetes itself is late with
                the pods, so is all that follows from them.
        """
        found = {}
        for uid, name in self.names.items():
            allowed = allowed_s + (self.delay_s(uid, away) if is_beyond_delay else 0.0)
            for node in sorted({*self.true[uid], *self.told[uid]}):
                true, told = self.true[uid][node], self.told[uid][node]
                found[f"{name} on {node}"] = timeline.untruths(
                    true, told, away, allowed, self._ended(uid)
                )
        return {name: each for name, each in found.items() if each}

    def delay_s(self, uid: str, away: list[Away]) -> float:
        """The longest time in which the status of the pods' DaemonSet was not true any more."""
        ready: dict[str, list[Change]] = defaultdict(list)
        moments = sorted({each.at for changes in self.up[uid].values() for each in changes})
        for at in moments:
            _note_count(ready, at, sum(_is_ready(each, at) for each in self.up[uid].values()))
        wrong = [
            each
            for count in {*ready, *self.counted[uid]}
            for each in timeline.untruths(
                ready[count], self.counted[uid][count], away, 0.0, self._ended(uid)
            )
        ]
        return max((each.seconds for each in wrong), default=0.0)

    def _ended(self, uid: str) -> float:
        return self.deleted.get(uid, time.monotonic())

    def was_ready(self) -> set[str]:
        """The names of the domains of which some node was Ready at some time."""
        return {
            name
            for uid, name in self.names.items()
            if any(each.is_ready for changes in self.told[uid].values() for each in changes)
        }


@dataclass(frozen=True)
class _Words:
    """What a daemon says on its pod, and what the container before it has left there.

    Attributes:
        pod: The pod's UID.
        started: When its youngest container started, as the kubelet writes it.
        text: The daemon's annotation.
        of_former_container: What the former container has left there; empty once the next one has
            spoken.
    """

    pod: str
    started: str
    text: str
    of_former_container: str = ""

    @classmethod
    def of(cls, pod: Json) -> "_Words":
        meta = pod["metadata"]
        text = (meta.get("annotations") or {}).get(names.DAEMON_ANNOTATION, "")
        return cls(meta["uid"], max(_starts(pod), default=""), text)

    def after(self, before: "_Words | None") -> "_Words":
        """The same, with what is known from the version of the pod before."""
        if before is None or before.pod != self.pod:
            return self
        if not self.started:  # between two containers
            return replace(before, text=self.text)
        former = before.text
        if before.started in ("", self.started):
            former = before.of_former_container
        return replace(self, of_former_container=former if former == self.text else "")


def _note(changes: list[Change], change: Change) -> bool:
    """Append a change, unless it is none."""
    before = changes[-1].is_ready if changes else False
    if before == change.is_ready:
        return False
    changes.append(change)
    return True


def _note_count(changes: dict[str, list[Change]], now: float, count: int) -> None:
    """Note how many are Ready, as nodes that have numbers in place of names."""
    for number in range(max(count, len(changes))):
        _note(changes[str(number)], Change(now, number < count))


def _is_ready(changes: list[Change], at: float) -> bool:
    return next((each.is_ready for each in reversed(changes) if each.at <= at), False)


def _started(pod: Json, now: float) -> float | None:
    """When the youngest of the running containers started, on the monotonic clock.

    A daemon works before the kubelet reports its pod, and a status that says so is right. The API
    has whole seconds, rounded down. None if nothing runs.
    """
    starts = [datetime.fromisoformat(start).timestamp() for start in _starts(pod)]
    return min(now, now - (time.time() - max(starts))) if starts else None


def _starts(pod: Json) -> list[str]:
    """When the running containers of a pod started, as the kubelet writes it."""
    states = [each.get("state", {}) for each in pod["status"].get("containerStatuses", [])]
    return [state["running"]["startedAt"] for state in states if "running" in state]


def _is_awaiting_probe(pod: Json) -> bool:
    """Whether all containers run, and one is not ready: then its probe has not succeeded yet.

    Where the node is lost, containers stay ready in the status of a pod that is not.
    """
    states = pod["status"].get("containerStatuses", [])
    is_running = all("running" in each.get("state", {}) for each in states)
    return is_running and any(each.get("ready") is False for each in states)


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
