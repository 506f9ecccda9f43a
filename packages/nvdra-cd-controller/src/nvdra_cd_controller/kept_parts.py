# SPDX-License-Identifier: Apache-2.0
"""The part of each object that the controller keeps: what its readers read, and no more. Pure.

Users write annotations, labels, finalizers and fields of a megabyte into objects that the
controller lists, of which it keeps none, however many objects there are. What is kept of a user's
text and of the number of finalizers is bounded. What is not kept must not be lost by a write, so a
kept object is never written back: it is patched, and where a patch replaces a list of which only a
part is kept (`is_partial`), the object is read whole before.

The DaemonSets and claim templates of all domains differ in a few names and UIDs, and so do the pods
of their daemons. As JSON values each takes many times the memory of its text, so equal parts are
kept once (`SharedParts`).
Source: docs/decisions/cd-controller.md, "What does the controller keep of an object?".
"""

import operator
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from nvdra_api import names
from nvdra_api.meta import JsonObject
from nvdra_api.v1beta1.compute_domain_clique import ComputeDomainDaemonInfo

from nvdra_cd_controller.domain_snapshot import TEMPLATE

ROOT_SPAN_ANNOTATION: Final = "nvdra.nvidia.com/trace-root"
"""Annotation of a child: when the root span was written."""

_MAX_CHARACTERS: Final[Mapping[str, int]] = {
    names.DOMAIN_SETTINGS_ANNOTATION: 4096,
    names.TRACEPARENT_ANNOTATION: 256,
    ROOT_SPAN_ANNOTATION: 256,
    names.DAEMON_ANNOTATION: 4096,
    names.LINKS_ANNOTATION: 16_384,
}
"""The annotations that are kept, and how much of each: no text of ours is longer, and a longer one
means as little when it is cut."""
_MAX_FINALIZERS: Final = 16

_IDENTITY: Final = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
)
_LABELS: Final = (names.DOMAIN_LABEL, names.DOMAIN_TARGET_LABEL, names.CLIQUE_LABEL)
_STATUS: Final = ("status", "readyNodes", "expectedNodes", "cliques", "nodes", "conditions")
_ENTRY: Final = frozenset(
    field.alias or name for name, field in ComputeDomainDaemonInfo.model_fields.items()
)
_OWNER: Final = ("apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion")
_POD_STATUS: Final = ("phase", "reason", "message", "podIP", "conditions", "containerStatuses")
_PARTIAL: Final = "isPartial"
"""A field that a kept object has besides those of the API, if a list that is written back lacks
something."""


def is_partial(kept: JsonObject) -> bool:
    """Whether a list that a write would replace is kept in part only."""
    return bool(kept.get(_PARTIAL))


def of_domain(obj: JsonObject) -> JsonObject:
    """A domain: what `ComputeDomain` reads of it, its finalizers and our annotations."""
    spec, status = obj.get("spec") or {}, obj.get("status")
    channel = spec.get("channel")
    if channel is not None:
        template = _only(channel.get("resourceClaimTemplate") or {}, ("name",))
        channel = {**_only(channel, ("allocationMode",)), "resourceClaimTemplate": template}
    return {
        **_only(obj, ("apiVersion", "kind")),
        "metadata": _metadata(obj),
        "spec": {**_only(spec, ("numNodes",)), **({"channel": channel} if channel else {})},
        **({} if status is None else {"status": _only(status, _STATUS)}),
        **_partial(_has_more_finalizers(obj)),
    }


def of_template(obj: JsonObject) -> JsonObject:
    """The metadata of a claim template."""
    return {
        "kind": TEMPLATE,
        "metadata": _metadata(obj),
        **_partial(_has_more_finalizers(obj)),
    }


def of_node(obj: JsonObject) -> JsonObject:
    """The metadata of a node."""
    metadata = _metadata(obj)
    metadata.pop("finalizers", None)
    return {"kind": "Node", "metadata": metadata}


def of_clique(obj: JsonObject) -> JsonObject:
    """A clique: its labels, its owners and the known fields of its entries."""
    entries = obj.get("daemons") or ()
    owners = [_only(each, _OWNER) for each in obj["metadata"].get("ownerReferences") or ()]
    metadata = _metadata(obj)
    if owners:
        metadata["ownerReferences"] = owners
    return {
        **_only(obj, ("apiVersion", "kind")),
        "metadata": metadata,
        "daemons": [_only(entry, _ENTRY) for entry in entries],
        **_partial(any(entry.keys() - _ENTRY for entry in entries)),
    }


def of_pod(obj: JsonObject) -> JsonObject:
    """A daemon's pod: what `daemon_pods.read` reads of it."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    containers = [_with_gates_only(each) for each in spec.get("containers") or ()]
    return {
        "kind": "Pod",
        "metadata": _metadata(obj),
        "spec": {**_only(spec, ("nodeName", "affinity")), "containers": containers},
        "status": _only(status, _POD_STATUS),
    }


def of_child(obj: JsonObject) -> JsonObject:
    """A DaemonSet or NetworkPolicy, which is written whole: only the driver's namespace has it.

    `managedFields` is a third of it, and the server keeps its own.
    """
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    return {**obj, "metadata": metadata}


class SharedParts:
    """A transform of the objects of one collection.

    What it returns has parts in common with other objects, so it must not be changed.
    """

    def __init__(self, trim: Callable[[JsonObject], JsonObject]) -> None:
        """Create the transform.

        Args:
            trim: Returns the part of an object to keep.
        """
        self._trim = trim
        self._last: JsonObject = {}

    def __call__(self, obj: JsonObject) -> JsonObject:
        """The part of the object to keep, with the parts of the last object where it can."""
        self._last = shared(self._trim(obj), self._last)
        return self._last


def shared(value: Any, model: Any) -> Any:
    """An equal value that has those parts of the model which are equal. Neither is changed."""
    if type(value) is not type(model):
        model = type(value)() if isinstance(value, dict | list) else None
    if isinstance(value, dict):
        made = {sys.intern(key): shared(each, model.get(key)) for key, each in value.items()}
        is_model = made.keys() == model.keys() and all(model[key] is made[key] for key in made)
        return model if is_model else made
    if isinstance(value, list):
        models = [*model, *value[len(model) :]]
        items = [shared(*pair) for pair in zip(value, models, strict=False)]
        is_model = len(items) == len(model) and all(map(operator.is_, items, model))
        return model if is_model else items
    return model if value == model else value


def _metadata(obj: JsonObject) -> JsonObject:
    metadata = obj["metadata"]
    labels = _only(metadata.get("labels") or {}, _LABELS)
    texts = _only(metadata.get("annotations") or {}, _MAX_CHARACTERS)
    annotations = {key: text[: _MAX_CHARACTERS[key]] for key, text in texts.items()}
    finalizers = metadata.get("finalizers") or ()
    return {
        **_only(metadata, _IDENTITY),
        **({"labels": labels} if labels else {}),
        **({"annotations": annotations} if annotations else {}),
        **({"finalizers": _kept_finalizers(finalizers)} if finalizers else {}),
    }


def _kept_finalizers(finalizers: Collection[str]) -> list[str]:
    """Ours and the first of the others, in their order."""
    others = [name for name in finalizers if name != names.DOMAIN_FINALIZER][:_MAX_FINALIZERS]
    return [name for name in finalizers if name == names.DOMAIN_FINALIZER or name in others]


def _has_more_finalizers(obj: JsonObject) -> bool:
    return len(obj["metadata"].get("finalizers") or ()) > _MAX_FINALIZERS


def _with_gates_only(container: JsonObject) -> JsonObject:
    env = [each for each in container.get("env") or () if each.get("name") == "FEATURE_GATES"]
    return {**_only(container, ("name",)), "env": env}


def _partial(is_cut: bool) -> JsonObject:
    return {_PARTIAL: True} if is_cut else {}


def _only(value: Mapping[str, Any], keys: Collection[str]) -> JsonObject:
    return {key: value[key] for key in keys if key in value}
