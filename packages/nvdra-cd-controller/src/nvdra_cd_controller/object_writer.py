# SPDX-License-Identifier: Apache-2.0
"""Writes the controller's changes: children, finalizers, node labels, cliques, the status.

Each write is put into the informers' caches at once. A write is based on the version of the object
that was read: if the object has changed since, the write fails and the domain is
reconciled again. Source: docs/reference/compute-domain.md, "Reconcile of a domain", "Scalability
and latency" (KW-9, KW-12).
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Final

from nvdra_api import names
from nvdra_api.errors import PermanentError, Reason
from nvdra_api.ids import DomainUID, NodeName
from nvdra_api.meta import JsonObject
from nvdra_runtime.kube import apiversions, connection
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import Conflict, Invalid, NotFound
from nvdra_runtime.telemetry import active_span

from nvdra_cd_controller import api_paths, children, kept_parts
from nvdra_cd_controller.domain_snapshot import TEMPLATE, Child, DomainSnapshot, Kind
from nvdra_cd_controller.informers import DomainInformers
from nvdra_cd_controller.teardown import (
    Action,
    Delete,
    RemoveDomainFinalizer,
    RemoveFinalizer,
    RemoveNodeLabel,
)
from nvdra_cd_controller.template_specs import TemplateSpecs

CALL_TIMEOUT_S: Final = 10.0
"""Limit of one call, including the wait for the client's rate limiter."""


class ObjectWriter:
    """Writes objects of one controller."""

    def __init__(self, api: Client, informers: DomainInformers) -> None:
        self._api = api
        self._informers = informers
        self._specs = TemplateSpecs(informers.template)

    async def prepare_domain(self, snapshot: DomainSnapshot, annotations: dict[str, str]) -> None:
        """Add annotations, and our finalizer: a domain is not deleted before its children."""
        if names.DOMAIN_FINALIZER in _finalizers(snapshot.stored) and not annotations:
            return
        finalizers = await self._domain_finalizers(snapshot)
        metadata: JsonObject = {
            "resourceVersion": snapshot.stored["metadata"]["resourceVersion"],
            "finalizers": list(dict.fromkeys((*finalizers, names.DOMAIN_FINALIZER))),
        }
        if annotations:
            metadata["annotations"] = annotations
        await self._patch_domain(snapshot, metadata)

    async def ensure(self, desired: JsonObject, labelled: tuple[Child, ...]) -> None:
        """Create a child if it is missing, or correct it if it was changed.

        Args:
            desired: The child as it should be.
            labelled: The objects of its kind with the domain's label. Those with another name are
                left alone.

        Raises:
            PermanentError: `NameTaken`, `InvalidConfig`.
        """
        key = desired["metadata"]["namespace"], desired["metadata"]["name"]
        child = next((child for child in labelled if (child.namespace, child.name) == key), None)
        if child is None:
            await self._create(desired)
        elif child.is_terminating:
            # It was deleted while the domain lives: it is created again once it is gone. With
            # other finalizers than ours it stays for now; the watch reports its end.
            if names.DOMAIN_FINALIZER in child.finalizers:
                await self._remove_finalizer(child)
        else:
            if child.kind == TEMPLATE:
                child = await self._whole_template(child, desired)
            await self._correct(child, desired)

    async def remove(self, unwanted: tuple[Child, ...]) -> None:
        """Delete children that a domain is to have no more."""
        for child in unwanted:
            if not child.is_terminating:
                await self._delete(child)

    async def update_status(self, snapshot: DomainSnapshot, status: JsonObject) -> None:
        """Write a domain's status."""
        stored_metadata = snapshot.stored["metadata"]
        metadata = {key: stored_metadata[key] for key in _STATUS_METADATA}
        # The server takes nothing but the status from it.
        body = {**_DOMAIN, "metadata": metadata, "spec": snapshot.stored["spec"], "status": status}
        await self._write(self._api.replace(f"{_domain_path(snapshot)}/status", body, _deadline()))

    async def write_clique(self, clique: JsonObject, *, is_new: bool) -> JsonObject:
        """Create a clique, or set entries and owners of the version that it was computed from.

        Raises:
            Conflict: It was written since.
        """
        name, namespace = clique["metadata"]["name"], clique["metadata"]["namespace"]
        try:
            if is_new:
                return await self._create_clique(namespace, name, {**clique, **_CLIQUE})
            metadata = {
                key: clique["metadata"][key]
                for key in ("resourceVersion", "ownerReferences")
                if key in clique["metadata"]
            }
            body = {"metadata": metadata, "daemons": clique["daemons"]}
            path = api_paths.path(names.CLIQUE_KIND, namespace, name)
            return await self._write(self._api.patch(path, body, _deadline()))
        except NotFound as error:  # its last owner is gone, and the watch has not reported it yet
            raise Conflict(error.reason, error.message) from error

    async def whole_clique(self, clique: JsonObject) -> JsonObject:
        """A clique as it is now, with what is not kept of it.

        Raises:
            Conflict: It does not exist any more.
        """
        metadata = clique["metadata"]
        try:
            path = api_paths.path(names.CLIQUE_KIND, metadata["namespace"], metadata["name"])
            return await self._api.get(path, _deadline())
        except NotFound as error:
            raise Conflict(error.reason, error.message) from error

    async def _create_clique(self, namespace: str, name: str, body: JsonObject) -> JsonObject:
        path = api_paths.path(names.CLIQUE_KIND, namespace)
        try:
            return await self._write(self._api.create(path, body, _deadline()))
        except Conflict:
            # A daemon was faster, or the clique has lost the labels by which it is found.
            path, labels = f"{path}/{name}", body["metadata"]["labels"]
            stored = await self._api.get(path, _deadline())
            if not labels.items() <= (stored["metadata"].get("labels") or {}).items():
                version = stored["metadata"]["resourceVersion"]
                change = {"resourceVersion": version, "labels": labels}
                stored = await self._api.patch(path, {"metadata": change}, _deadline())
            self._informers.record_write(stored)
            raise

    async def annotate(self, child: Child, key: str, value: str) -> None:
        """Set an annotation of a child."""
        await self._patch(child, {"annotations": {key: value}})

    async def perform(self, snapshot: DomainSnapshot, action: Action) -> None:
        """Perform one action of a teardown."""
        match action:
            case Delete(child):
                await self._delete(child)
            case RemoveFinalizer(child):
                await self._remove_finalizer(child)
            case RemoveNodeLabel(node):
                await self._remove_node_label(snapshot, node)
            case RemoveDomainFinalizer():
                await self._remove_domain_finalizer(snapshot)

    async def _create(self, desired: JsonObject) -> None:
        child = Child(desired["kind"], children.creation_body(desired))
        path = await self._path(child, is_collection=True)
        body = await self._request_body(child)
        try:
            stored = await self._write(self._api.create(path, body, _deadline(), normalized=True))
        except Conflict:
            await self._adopt(child, desired)
        except Invalid as error:
            raise PermanentError(
                Reason.INVALID_CONFIG,
                f"the API server rejects {child}: {error.server_text}",
                _VALID_SPECS.get(child.kind, "create the domain again with a valid spec"),
            ) from error
        else:
            if child.kind == TEMPLATE:
                self._specs.record(await self._as_v1(child.kind, stored))

    async def _whole_template(self, template: Child, desired: JsonObject) -> Child:
        """A template with its spec, which is remembered only if it is the desired one."""
        metadata = template.object
        spec = self._specs.get(metadata)
        if spec is None:
            stored = await self._api.get(await self._path(template), _deadline())
            metadata = await self._as_v1(template.kind, stored)
            if not children.differs_in_spec(metadata, desired):
                self._specs.record(metadata)
            spec = metadata["spec"]
        version = apiversions.group_version("v1")
        return Child(template.kind, {**metadata, "apiVersion": version, "spec": spec})

    async def _adopt(self, child: Child, desired: JsonObject) -> None:
        """Take over an object of the child's name that lacks the domain's label, if it is ours."""
        stored = await self._api.get(await self._path(child), _deadline())
        found = Child(child.kind, await self._as_v1(child.kind, stored))
        if not children.belongs_to_domain(found.object, desired):
            label = (found.object["metadata"].get("labels") or {}).get(names.DOMAIN_LABEL)
            owner = f"the ComputeDomain with the UID {label}" if label else "somebody else"
            raise PermanentError(
                Reason.NAME_TAKEN,
                f"{child} already exists and belongs to {owner}",
                _FREE_NAMES.get(child.kind, "delete it if it is not needed"),
                child=str(child),
            )
        await self._correct(found, desired)

    async def _correct(self, child: Child, desired: JsonObject) -> None:
        corrected = children.corrected(child.object, desired)
        if corrected is None:
            return
        if child.kind != TEMPLATE:
            path = await self._path(child)
            await self._write(self._api.replace(path, corrected, _deadline()))
        elif children.differs_in_spec(child.object, desired):
            await self._delete(child)  # the spec is immutable; the next reconcile creates it again
        else:
            finalizers = (*await self._all_finalizers(child), *corrected["metadata"]["finalizers"])
            metadata = {
                "resourceVersion": child.object["metadata"]["resourceVersion"],
                "labels": corrected["metadata"]["labels"],
                "finalizers": list(dict.fromkeys(finalizers)),
            }
            await self._patch(child, metadata)

    async def _patch(self, child: Child, metadata: JsonObject) -> None:
        path, body = await self._path(child), {"metadata": metadata}
        answer = self._api.patch(path, body, _deadline(), accept=_accepted(child))
        await self._write(answer, child.kind)

    async def _patch_domain(self, snapshot: DomainSnapshot, metadata: JsonObject) -> None:
        body = {"metadata": metadata}
        await self._write(self._api.patch(_domain_path(snapshot), body, _deadline()))

    async def _write(self, answer: Awaitable[JsonObject], kind: str = "") -> JsonObject:
        """Send a write, and put the answer into the caches. Of metadata `kind` says what it is."""
        active_span.note_write()
        stored = await answer
        self._informers.record_write({**stored, "kind": kind} if kind else stored)
        return stored

    async def _delete(self, child: Child) -> None:
        active_span.note_write()
        path, uid = await self._path(child), child.object["metadata"]["uid"]
        try:
            answer = await self._api.delete(path, _deadline(), uid=uid, accept=_accepted(child))
        except NotFound:
            answer = {}
        if (answer.get("metadata") or {}).get("finalizers"):
            self._informers.record_write({**answer, "kind": child.kind})
        else:
            self._record_deletion(child)

    async def _remove_finalizer(self, child: Child) -> None:
        remaining = _without_ours(await self._all_finalizers(child))
        try:
            await self._patch(child, _finalizers_metadata(child.object, remaining))
        except NotFound:
            self._record_deletion(child)

    async def _remove_domain_finalizer(self, snapshot: DomainSnapshot) -> None:
        remaining = _without_ours(await self._domain_finalizers(snapshot))
        try:
            await self._patch_domain(snapshot, _finalizers_metadata(snapshot.stored, remaining))
        except NotFound:
            self._informers.record_deletion({**snapshot.stored, **_DOMAIN})

    async def _remove_node_label(self, snapshot: DomainSnapshot, node: NodeName) -> None:
        """Remove the label if it still has this domain's UID; the node may be in another by now."""
        pointer = names.DOMAIN_LABEL.replace("~", "~0").replace("/", "~1")
        path = f"/metadata/labels/{pointer}"
        body = [
            {"op": "test", "path": path, "value": snapshot.uid},
            {"op": "remove", "path": path},
        ]
        answer = self._api.patch(
            api_paths.path("Node", name=node),
            body,
            _deadline(),
            content_type="application/json-patch+json",
            accept=connection.METADATA,
        )
        try:
            await self._write(answer, "Node")
        except NotFound:
            pass  # the node is gone; the watch reports it
        except Invalid:
            # The API server refuses the change, or the test fails: the label has another domain's
            # UID, as the watch reports.
            if await self._has_label(node, snapshot.uid):
                raise

    async def _has_label(self, node: NodeName, uid: DomainUID) -> bool:
        selectors = {
            "fieldSelector": f"metadata.name={node}",
            "labelSelector": f"{names.DOMAIN_LABEL}={uid}",
        }
        found = await self._api.get(
            api_paths.path("Node"), _deadline(), selectors, connection.METADATA_LIST
        )
        return bool(found.get("items"))

    async def _domain_finalizers(self, snapshot: DomainSnapshot) -> Sequence[str]:
        domains = api_paths.path(names.DOMAIN_KIND, snapshot.stored["metadata"]["namespace"])
        return await self._read_finalizers(domains, snapshot.stored)

    async def _all_finalizers(self, child: Child) -> Sequence[str]:
        path = await self._path(child, is_collection=True)
        return await self._read_finalizers(path, child.object)

    async def _read_finalizers(self, collection: str, kept: JsonObject) -> Sequence[str]:
        """All finalizers of an object, which are read if some are not kept.

        A patch of the version that is kept fails if the object has changed since.
        """
        if not kept_parts.is_partial(kept):
            return _finalizers(kept)
        params = {"fieldSelector": f"metadata.name={kept['metadata']['name']}"}
        listed = await self._api.get(collection, _deadline(), params, connection.METADATA_LIST)
        found = next(iter(listed.get("items") or ()), kept)
        return _finalizers(found)

    def _record_deletion(self, child: Child) -> None:
        self._informers.record_deletion({**child.object, "kind": child.kind})

    async def _path(self, child: Child, *, is_collection: bool = False) -> str:
        name = "" if is_collection else child.name
        if child.kind != TEMPLATE:
            return api_paths.path(child.kind, child.namespace, name)
        version = await self._api.dra_api_version(_deadline())
        return apiversions.templates_path(version, child.namespace, name)

    async def _request_body(self, child: Child) -> JsonObject:
        if child.kind != TEMPLATE:
            return child.object
        version = await self._api.dra_api_version(_deadline())
        return apiversions.template_to_version(version, child.object)

    async def _as_v1(self, kind: Kind, stored: JsonObject) -> JsonObject:
        if kind != TEMPLATE:
            return stored
        version = await self._api.dra_api_version(_deadline())
        return apiversions.template_from_version(version, stored)


_CLIQUE: Final = {"apiVersion": names.NVIDIA_API_VERSION, "kind": names.CLIQUE_KIND}
_FREE_NAMES: Final[Mapping[Kind, str]] = {
    TEMPLATE: "delete or rename it if it is not needed, or create the domain again with another "
    "name in spec.channel.resourceClaimTemplate.name"
}
_VALID_SPECS: Final[Mapping[Kind, str]] = {
    "NetworkPolicy": "correct the chart's value daemon.networkPolicy.metricsFrom"
}
"""What to do when a name is taken, and when the API server rejects a child."""

_STATUS_METADATA: Final = ("name", "namespace", "uid", "resourceVersion")
_DOMAIN: Final = {"apiVersion": names.NVIDIA_API_VERSION, "kind": names.DOMAIN_KIND}


def _accepted(child: Child) -> str:
    """The media type of answers: a template that is found by its label may hold any spec."""
    return connection.METADATA if child.kind == TEMPLATE else connection.JSON


def _finalizers_metadata(obj: JsonObject, finalizers: list[str]) -> JsonObject:
    version = obj["metadata"]["resourceVersion"]
    return {"resourceVersion": version, "finalizers": finalizers or None}


def _domain_path(snapshot: DomainSnapshot) -> str:
    metadata = snapshot.stored["metadata"]
    return api_paths.path(names.DOMAIN_KIND, metadata["namespace"], metadata["name"])


def _without_ours(finalizers: Sequence[str]) -> list[str]:
    return [name for name in finalizers if name != names.DOMAIN_FINALIZER]


def _finalizers(obj: JsonObject) -> list[str]:
    return list(obj["metadata"].get("finalizers") or ())


def _deadline() -> float:
    return asyncio.get_running_loop().time() + CALL_TIMEOUT_S
