"""The pod of a daemon, as far as a domain's status depends on it."""

from dataclasses import dataclass
from typing import Any, Final

from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.types import names
from nvdra_api.types.gates import Feature, GateError, Gates
from nvdra_api.types.ids import CliqueID, DomainUID, NodeName, PodUID

_OVER: Final = ("Succeeded", "Failed")
_UNREMARKABLE: Final = ("ContainerCreating", "PodInitializing")


@dataclass(frozen=True, slots=True)
class DaemonPod:
    """One daemon's pod.

    Attributes:
        name: Of the pod.
        namespace: Likewise.
        uid: Which incarnation.
        domain: UID of the domain whose DaemonSet made it.
        node: Where it is, or the only node where it may go.
        ip: Empty until it has one.
        created: When, as the API server writes it; orders incarnations.
        is_ready: Its condition Ready.
        is_over: It ended and does not come back.
        is_leaving: It is being deleted.
        clique: What its label says; None without the label, empty on a node without fabric.
        writes_status: It is one of the reference driver's that was told to keep to the domain's
            status and not to use cliques.
        trouble: Why it does not start or does not stay up; empty while nothing is wrong.
    """

    name: str
    namespace: str
    uid: PodUID
    domain: DomainUID
    node: NodeName
    ip: str = ""
    created: str = ""
    is_ready: bool = False
    is_over: bool = False
    is_leaving: bool = False
    clique: CliqueID | None = None
    writes_status: bool = False
    trouble: str = ""


def read(obj: JsonObject) -> DaemonPod:
    """The pod as the API server has it."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    labels = metadata.get("labels") or {}
    clique = labels.get(names.CLIQUE_LABEL)
    return DaemonPod(
        name=metadata["name"],
        namespace=metadata.get("namespace", ""),
        uid=PodUID(metadata.get("uid", "")),
        domain=DomainUID(labels.get(names.DOMAIN_LABEL, "")),
        node=NodeName(spec.get("nodeName") or _destination(spec)),
        ip=status.get("podIP") or "",
        created=metadata.get("creationTimestamp") or "",
        is_ready=_condition(status, "Ready").get("status") == "True",
        is_over=status.get("phase") in _OVER,
        is_leaving=bool(metadata.get("deletionTimestamp")),
        clique=None if clique is None else CliqueID(clique),
        writes_status=_writes_status(spec),
        trouble=_trouble(status),
    )


def _destination(spec: JsonObject) -> str:
    """The node that the DaemonSet made the pod for, while the scheduler has not bound it."""
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


def _writes_status(spec: JsonObject) -> bool:
    containers: list[Any] = spec.get("containers") or []
    for variable in (each for container in containers for each in container.get("env") or ()):
        if variable.get("name") == "FEATURE_GATES":
            try:
                return not Gates.parse(variable.get("value") or "").is_on(Feature.CLIQUES)
            except GateError:
                return False  # a later release's gates; it has cliques
    return False


def _trouble(status: JsonObject) -> str:
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return _said(scheduled)
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] not in _UNREMARKABLE:
            return _said(waiting)
    return ""


def _said(source: JsonObject) -> str:
    reason, message = source.get("reason") or "", " ".join((source.get("message") or "").split())
    return ": ".join(filter(None, (reason, message)))
