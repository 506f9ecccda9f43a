# SPDX-License-Identifier: Apache-2.0
"""Reads what a domain's status needs from the pod of a daemon. Pure."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from nvdra_api import names
from nvdra_api.gates import Feature, FeatureGateError, FeatureGates
from nvdra_api.ids import CliqueID, DomainUID, NodeName, PodUID
from nvdra_api.meta import JsonObject

from nvdra_runtime.computedomain import announcements, imex_links
from nvdra_runtime.computedomain.announcements import Announcement
from nvdra_runtime.computedomain.imex_links import ImexLinks

_FINISHED_PHASES: Final = ("Succeeded", "Failed")
_NORMAL_REASONS: Final = ("ContainerCreating", "PodInitializing")
_PROCESS_START_S: Final = (-1.0, 120.0)
"""When the daemon's process may start after its container, whose time has no fractions."""
_STARTED_AGAIN: Final = "its daemon has started again and is not ready yet"


@dataclass(frozen=True, slots=True)
class DaemonPod:
    """The pod of one daemon.

    Attributes:
        name: The pod's name.
        namespace: The pod's namespace.
        uid: The pod's UID, which differs from that of its predecessor with the same name.
        domain: The UID of the domain whose DaemonSet made the pod.
        node: The pod's node; before it is bound, the only node that its affinity allows.
        ip: The pod's address; empty until it has one.
        created: The creation time as the API server writes it. These texts sort by time.
        is_ready: The pod's condition Ready.
        down_because: Why the daemon does not run any more, by the pod's condition Ready, as text;
            empty while it may run. A container that has not been started yet is no such evidence.
        ended_because: Why the daemon that was Ready has ended, by the pod's status, as text; empty
            if nothing says so. A container that was started again and is not Ready yet is a reason,
            one that was started for the first time is none.
        is_finished: The pod ended and is not started again.
        is_terminating: The pod is being deleted.
        clique: The clique in the pod's label; None without the label, empty on a node without a
            fabric.
        writes_status: The daemon is one of the reference driver with cliques disabled, which
            writes to the domain's status.
        announcement: What the daemon says of itself on its pod; None if it writes to the clique
            itself, or has not started yet. It is not ready if an earlier container has said so.
        problem: Why the pod does not start, does not stay up, or was ended, such as by an eviction;
            empty if there is no problem.
        links: What is wrong with the connections of its IMEX, as the daemon has written it.
        running_since: Since when its container runs, as the kubelet writes it; empty if it is not.
    """

    name: str
    namespace: str
    uid: PodUID
    domain: DomainUID
    node: NodeName
    ip: str = ""
    created: str = ""
    is_ready: bool = False
    down_because: str = ""
    ended_because: str = ""
    is_finished: bool = False
    is_terminating: bool = False
    clique: CliqueID | None = None
    writes_status: bool = False
    announcement: Announcement | None = None
    problem: str = ""
    links: ImexLinks = imex_links.WELL
    running_since: str = ""


def read(obj: JsonObject) -> DaemonPod:
    """Read a pod that the API server returned."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    labels = metadata.get("labels") or {}
    clique = labels.get(names.CLIQUE_LABEL)
    return DaemonPod(
        name=metadata["name"],
        namespace=metadata.get("namespace", ""),
        uid=PodUID(metadata.get("uid", "")),
        domain=DomainUID(labels.get(names.DOMAIN_LABEL, "")),
        node=NodeName(spec.get("nodeName") or _target_node(spec)),
        ip=status.get("podIP") or "",
        created=metadata.get("creationTimestamp") or "",
        is_ready=_condition(status, "Ready").get("status") == "True",
        down_because=_down_because(status),
        ended_because=_ended_because(status),
        is_finished=status.get("phase") in _FINISHED_PHASES,
        is_terminating=bool(metadata.get("deletionTimestamp")),
        clique=None if clique is None else CliqueID(clique),
        writes_status=_writes_status(spec),
        announcement=_current(
            announcements.from_annotations(metadata.get("annotations") or {}), status
        ),
        problem=_problem(status),
        links=imex_links.decode((metadata.get("annotations") or {}).get(names.LINKS_ANNOTATION)),
        running_since=_running_since(status),
    )


def _target_node(spec: JsonObject) -> str:
    """The node for which the DaemonSet made the pod, before the scheduler binds it."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field.get("key") == "metadata.name" and len(field.get("values") or ()) == 1:
                return str(field["values"][0])
    return ""


def _condition(status: JsonObject, kind: str) -> JsonObject:
    found = (each for each in status.get("conditions") or () if each.get("type") == kind)
    return dict(next(found, {}))


def _running_since(status: JsonObject) -> str:
    states = (
        (each.get("state") or {}).get("running") for each in status.get("containerStatuses") or ()
    )
    return max((str(state.get("startedAt") or "") for state in states if state), default="")


def _current(said: Announcement | None, status: JsonObject) -> Announcement | None:
    """What the daemon says; not ready where an earlier container of the pod has said that it is.

    A container that the kubelet has found ready has asked the daemon itself. Before, the time at
    which the process started has to fit that of the container: both are times of the node's clock,
    and a clock that is set between the two only makes readiness wait for the kubelet.
    """
    containers = status.get("containerStatuses") or ()
    since = _running_since(status)
    is_found_ready = all(container.get("ready") for container in containers)
    if said is None or not said.is_ready or said.started is None or is_found_ready or not since:
        return said
    after_s = said.started - datetime.fromisoformat(since).timestamp()
    if _PROCESS_START_S[0] <= after_s <= _PROCESS_START_S[1]:
        return said
    return replace(said, is_ready=False, message=_STARTED_AGAIN)


def _writes_status(spec: JsonObject) -> bool:
    containers: list[Any] = spec.get("containers") or []
    for variable in (each for container in containers for each in container.get("env") or ()):
        if variable.get("name") == "FEATURE_GATES":
            try:
                return not FeatureGates.parse(variable.get("value") or "").is_enabled(
                    Feature.CLIQUES
                )
            except FeatureGateError:
                return False  # gates of a later release, which has cliques
    return False


def _down_because(status: JsonObject) -> str:
    """Why the daemon does not run; empty if only the readiness probe says that it is not ready.

    The probe asks the daemon what the daemon also says in its entry, and some seconds later.
    """
    containers = status.get("containerStatuses") or ()
    is_running = all("running" in (container.get("state") or {}) for container in containers)
    if is_running and any(container.get("ready") is False for container in containers):
        return ""
    return _not_ready_because(status)


def _not_ready_because(status: JsonObject) -> str:
    """The kubelet sets Ready to False when the container ends, the node controller for a lost node.

    Before its first start a container is not Ready either. The kubelet reports the start a moment
    later, when the daemon may have joined already.
    """
    ready = _condition(status, "Ready")
    containers = status.get("containerStatuses") or ()
    if ready.get("status") != "False" or not any(
        _was_started(container) for container in containers
    ):
        return ""
    text = _reason_and_message(ready)
    return "its daemon's pod is not ready any more" + (f": {text}" if text else "")


def _ended_because(status: JsonObject) -> str:
    down_because = _not_ready_because(status)
    if status.get("phase") in _FINISHED_PHASES:
        return down_because or "its daemon's pod has ended"
    is_again = any(_has_ended_once(each) for each in status.get("containerStatuses") or ())
    return down_because if is_again else ""


def _has_ended_once(container: JsonObject) -> bool:
    ended = container.get("restartCount") or container.get("lastState")
    return bool(ended) or "terminated" in (container.get("state") or {})


def _was_started(container: JsonObject) -> bool:
    return _has_ended_once(container) or "running" in (container.get("state") or {})


def _problem(status: JsonObject) -> str:
    if status.get("phase") == "Failed":
        return _reason_and_message(status)
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return _reason_and_message(scheduled)
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] not in _NORMAL_REASONS:
            return _reason_and_message(waiting)
    return ""


def _reason_and_message(source: JsonObject) -> str:
    reason, message = source.get("reason") or "", " ".join((source.get("message") or "").split())
    return ": ".join(filter(None, (reason, message)))
