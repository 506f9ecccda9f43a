# SPDX-License-Identifier: Apache-2.0
"""What was seen of pods, claims, GPUs and nodes, by the events of watches; no judgement here.

Times are monotonic seconds of this machine, taken when an event arrives.
"""

import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from nvdra_api.errors import Reason

from nvdra_testing.cluster import api_versions
from nvdra_testing.cluster.api_client import ApiClient, Json

DRIVER = "gpu.nvidia.com"

NOT_REGISTERED = "NotRegistered"
CONNECTION_LOST = "ConnectionLost"
UNSCHEDULABLE = "Unschedulable"
CONTAINER_FAILED = "ContainerFailed"
_KUBELETS_WORDS = {
    r"is not registered|not found in the list of registered": NOT_REGISTERED,
    r"connection refused|error reading from server|connection error|code = Unavailable|"
    r"code = Canceled|no such file or directory.*sock": CONNECTION_LOST,
    r"context deadline exceeded|code = DeadlineExceeded": "DeadlineExceeded",
    r"unresolvable CDI devices|failed to create containerd task|failed to inject CDI": (
        CONTAINER_FAILED
    ),
}
"""What the kubelet and the runtime say in their own words, and our names for it."""
_REASON = re.compile(rf"\b({'|'.join(Reason)})\b")


@dataclass(frozen=True)
class Told:
    """A Warning about a pod: when it was seen, the reasons that it names, and its text."""

    at: float
    reasons: frozenset[str]
    text: str


@dataclass
class Run:
    """One container of a pod, from its start until it was seen to have ended."""

    container: str
    began: float
    ended: float | None = None


@dataclass
class PodHistory:
    """One pod from its creation until it was gone.

    `forgotten` has the moments at which the pod's status no longer named a claim that it had named;
    `names_all` says whether it names all of them now. `named` has those that it has named, and
    `was_named_again` when all were written into the status for a pod that did not end.
    """

    name: str
    created: float
    node: str = ""
    scheduled: float | None = None
    runs: list[Run] = field(default_factory=list)
    deleted: float | None = None
    gone: float | None = None
    told: list[Told] = field(default_factory=list)
    claims: dict[str, str] = field(default_factory=dict)
    forgotten: list[float] = field(default_factory=list)
    named: dict[str, str] = field(default_factory=dict)
    names_all: bool = True
    was_named_again: float | None = None

    @property
    def is_running(self) -> bool:
        """Whether its container runs, as far as the API server knows."""
        return self.gone is None and bool(self.runs) and self.runs[-1].ended is None


@dataclass
class Allocation:
    """A device that a claim had."""

    claim: str
    node: str
    device: str
    is_admin: bool
    began: float
    ended: float | None = None


@dataclass
class History:
    """Everything that was seen. The lock is held by who reads it while watches run."""

    pods: dict[str, PodHistory] = field(default_factory=dict)
    allocations: dict[str, list[Allocation]] = field(default_factory=lambda: defaultdict(list))
    offered: dict[str, list[tuple[float, frozenset[str]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """The names of the published GPUs by node, at each change."""
    ready: dict[str, list[tuple[float, bool]]] = field(default_factory=lambda: defaultdict(list))
    """Whether pods can be scheduled to a node, at each change."""
    uuids: dict[tuple[str, str], str] = field(default_factory=dict)
    """The GPU of each published device, by node and name: of a MIG device, the one that it is made
    on."""
    changed_uuids: list[str] = field(default_factory=list)
    """Names that became those of other GPUs in one boot."""
    boots: dict[str, str] = field(default_factory=dict)
    """The IDs of the nodes' boots."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    _slices: dict[str, tuple[str, frozenset[str]]] = field(default_factory=dict)
    _named: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)

    def running(self) -> list[PodHistory]:
        """The pods whose container runs."""
        with self.lock:
            return [pod for pod in self.pods.values() if pod.is_running]

    def devices_of(self, pod: PodHistory) -> list[Allocation]:
        """What is allocated to a pod's claims now."""
        with self.lock:
            return [
                each
                for claim in pod.claims.values()
                for each in self.allocations.get(claim, ())
                if each.ended is None
            ]

    # The events of watches

    def take_pod(self, kind: str, pod: Json) -> None:
        """A version of a pod."""
        with self.lock:
            found = self.pods.get(pod["metadata"]["name"])
            if found is None:
                return
            now = time.monotonic()
            if pod["spec"].get("nodeName") and found.scheduled is None:
                found.node, found.scheduled = pod["spec"]["nodeName"], now
            status = pod.get("status", {})
            named = {
                each["name"]: each["resourceClaimName"]
                for each in status.get("resourceClaimStatuses") or ()
                if each.get("resourceClaimName")
            }
            if named and not found.claims.keys() <= named.keys():
                found.forgotten.append(now)
            found.named.update(named)
            found.names_all = found.named.keys() <= named.keys()
            found.claims.update(named)
            for each in pod["spec"].get("resourceClaims") or ():
                if each.get("resourceClaimName"):
                    found.claims[each["name"]] = each["resourceClaimName"]
            containers = status.get("containerStatuses") or [{}]
            self._take_container(found, containers[0], now)
            for condition in status.get("conditions") or ():
                if condition["type"] == "PodScheduled" and condition["status"] == "False":
                    text = condition.get("message", "")
                    _tell(found, Told(now, frozenset({UNSCHEDULABLE}), text))
            if kind == "DELETED":
                found.gone = now
                if found.is_running:
                    found.runs[-1].ended = now

    def _take_container(self, pod: PodHistory, status: Mapping[str, Any], now: float) -> None:
        container = status.get("containerID", "")
        runs = "running" in status.get("state", {})
        last = pod.runs[-1] if pod.runs else None
        if last is not None and last.ended is None and (not runs or last.container != container):
            last.ended = now
        if runs and (last is None or last.container != container):
            pod.runs.append(Run(container, now))

    def take_event(self, kind: str, event: Json) -> None:
        """A version of an Event of a pod."""
        if kind == "DELETED" or event.get("type") != "Warning":
            return
        with self.lock:
            pod = self.pods.get(event.get("involvedObject", {}).get("name", ""))
            if pod is not None:
                reasons = reasons_in(event.get("reason", ""), event.get("message") or "")
                text = f"{event.get('reason')}: {event.get('message')}"
                _tell(pod, Told(time.monotonic(), reasons, text))

    def take_claim(self, kind: str, claim: Json) -> None:
        """A version of a claim."""
        name = claim["metadata"]["name"]
        allocation = (claim.get("status") or {}).get("allocation") or {}
        results = () if kind == "DELETED" else allocation.get("devices", {}).get("results") or ()
        has = {
            (each["pool"], each["device"]): bool(each.get("adminAccess"))
            for each in results
            if each["driver"] == DRIVER
        }
        with self.lock:
            now = time.monotonic()
            known = self.allocations[name]
            for each in known:
                if each.ended is None and (each.node, each.device) not in has:
                    each.ended = now
            open_ones = {(each.node, each.device) for each in known if each.ended is None}
            known += [
                Allocation(name, node, device, is_admin, now)
                for (node, device), is_admin in has.items()
                if (node, device) not in open_ones
            ]

    def take_slice(self, kind: str, found: Json) -> None:
        """A version of a ResourceSlice of any driver."""
        spec = found["spec"]
        if spec["driver"] != DRIVER:
            return
        with self.lock:
            node, name = spec["nodeName"], found["metadata"]["name"]
            devices = [api_versions.device_as_v1(each) for each in spec.get("devices") or ()]
            if kind == "DELETED":
                self._slices.pop(name, None)
            else:
                whole = frozenset(str(each["name"]) for each in devices if is_gpu(each["name"]))
                self._slices[name] = node, whole
            boot = self.boots.get(node, "")
            for each in devices:
                attributes = each["attributes"]
                uuid = str(attributes.get("parentUUID", attributes.get("uuid"))["string"])
                where = node, str(each["name"])
                known = self._named.get(where)
                if known is not None and known[0] == boot and known[1] != uuid:
                    self.changed_uuids.append(f"{node}/{each['name']} became {uuid}")
                self._named[where], self.uuids[where] = (boot, uuid), uuid
            names = frozenset[str]().union(
                *(names for where, names in self._slices.values() if where == node)
            )
            self.offered[node].append((time.monotonic(), names))

    def take_node(self, kind: str, node: Json) -> None:
        """A version of a node."""
        conditions = node.get("status", {}).get("conditions") or ()
        is_ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        is_free = not any(
            each["effect"] != "PreferNoSchedule" for each in node["spec"].get("taints") or ()
        )
        with self.lock:
            info = node.get("status", {}).get("nodeInfo") or {}
            self.boots[node["metadata"]["name"]] = info.get("bootID", "")
            steps = self.ready[node["metadata"]["name"]]
            now = kind != "DELETED" and is_ready and is_free
            if not steps or steps[-1][1] != now:
                steps.append((time.monotonic(), now))


@contextmanager
def recorded(client: ApiClient, namespace: str, resource_api_version: str) -> Iterator[History]:
    """Record a namespace, the nodes and their GPUs while the block runs."""
    history = History()
    resources = f"/apis/resource.k8s.io/{resource_api_version}"
    watched = (
        (f"/api/v1/namespaces/{namespace}/pods", history.take_pod),
        (f"/api/v1/namespaces/{namespace}/events", history.take_event),
        (f"{resources}/namespaces/{namespace}/resourceclaims", history.take_claim),
        (f"{resources}/resourceslices", history.take_slice),
        ("/api/v1/nodes", history.take_node),
    )
    with ExitStack() as stack:
        for path, take in watched:
            stack.enter_context(client.watch(path, take))
        yield history


def reasons_in(reason: str, text: str) -> frozenset[str]:
    """The reasons that a Warning names: the driver's own, or what the kubelet says about it."""
    found = set(_REASON.findall(f"{reason} {text}"))
    found |= {name for pattern, name in _KUBELETS_WORDS.items() if re.search(pattern, text)}
    if reason == "FailedScheduling":
        found.add(UNSCHEDULABLE)
    return frozenset(found)


def is_gpu(device: str) -> bool:
    """Whether a device is a whole GPU, by its name."""
    return "-mig-" not in device


def gpu_of(device: str) -> str:
    """The name of the GPU that a device is, or is a part of."""
    return device.partition("-mig-")[0]


def _tell(pod: PodHistory, told: Told) -> None:
    """Keep a Warning unless it repeats the last one word for word within a second."""
    if not pod.told or pod.told[-1].text != told.text or told.at - pod.told[-1].at > 1:
        pod.told.append(told)
