"""What the controller writes: children, finalizers, labels, the status.

Each write counts in the cluster's picture at once, and is made over the version that was looked at:
what somebody else has changed meanwhile is looked at again, never overwritten.
Source: spec/compute-domain.md §6.5, §14.1 (KW-9, KW-12).
"""

import asyncio
from typing import Final

from nvdra_api.protocol import apiversions
from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.errors import Conflict, Invalid, NotFound
from nvdra_api.types import names
from nvdra_api.types.errors import PermanentError, Reason
from nvdra_api.types.ids import NodeName

from nvdra_cd_controller import children, cluster
from nvdra_cd_controller.cluster import Cluster
from nvdra_cd_controller.teardown import Action, Delete, Dismiss, Release, Unlabel
from nvdra_cd_controller.view import Child, Kind, View

CALL_S: Final = 10.0
"""For one call; the client's own rate limit counts in."""


class Writes:
    """Writes for one controller."""

    def __init__(self, api: Client, seen: Cluster) -> None:
        self._api = api
        self._cluster = seen

    async def claim(self, view: View) -> None:
        """Put our finalizer on a domain: from now on it cannot go before its children."""
        finalizers = [*_finalizers(view.stored), names.DOMAIN_FINALIZER]
        await self._set_finalizers(_domain_path(view), view.stored, finalizers)

    async def ensure(self, kind: Kind, wanted: JsonObject, known: tuple[Child, ...]) -> bool:
        """Make a child, or put right what was changed of it; whether anything was written.

        Args:
            kind: Of the child.
            wanted: As it should be.
            known: What carries the domain's label of that kind; others than the wanted are let be.

        Raises:
            PermanentError: NameTaken, InvalidConfig.
        """
        place = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
        child = next((each for each in known if (each.namespace, each.name) == place), None)
        if child is None:
            await self._create(kind, wanted)
            return True
        if child.is_leaving:
            return await self._let_go(child)
        return await self._heal(child, wanted)

    async def status(self, view: View, status: JsonObject) -> JsonObject:
        """Store a domain's status; the domain as stored comes back."""
        body = {**view.stored, **_DOMAIN, "status": status}
        stored = await self._api.replace(f"{_domain_path(view)}/status", body, _deadline())
        self._cluster.wrote(stored)
        return stored

    async def prune(self, name: str, namespace: str, stale: tuple[NodeName, ...]) -> None:
        """Take entries of nodes that are gone out of a clique."""
        path = cluster.cliques_path(namespace, name)
        try:
            stored = await self._api.get(path, _deadline())
        except NotFound:
            return  # its last daemon has gone, and the watch will say so
        left = [each for each in stored.get("daemons") or () if each["nodeName"] not in stale]
        self._cluster.wrote(await self._api.replace(path, {**stored, "daemons": left}, _deadline()))

    async def annotate(self, child: Child, key: str, value: str) -> None:
        """Put an annotation on a child."""
        body = {"metadata": {"annotations": {key: value}}}
        self._cluster.wrote(await self._api.patch(await self._path(child), body, _deadline()))

    async def perform(self, view: View, action: Action) -> None:
        """One action of a teardown."""
        match action:
            case Delete(child):
                await self._delete(child)
            case Release(child):
                await self._release(child)
            case Unlabel(node):
                await self._unlabel(view, node)
            case Dismiss():
                await self._dismiss(view)

    async def is_absent(self, view: View) -> bool:
        """Ask the API server itself whether a domain that we do not see is really not there."""
        listed = await self._api.get(cluster.domains_path(), _deadline())
        return all(each["metadata"]["uid"] != view.uid for each in listed.get("items") or ())

    async def _create(self, kind: Kind, wanted: JsonObject) -> None:
        child = Child(kind, children.created(wanted))
        path = await self._path(child, is_collection=True)
        try:
            stored = await self._api.create(
                path, await self._sent(child), _deadline(), normalized=True
            )
        except Conflict:
            await self._adopt(child, wanted)
        except Invalid as error:
            raise PermanentError(
                Reason.INVALID_CONFIG,
                f"the API server takes no {child}: {error.server_text}",
                "make the domain again with a spec that can be served",
            ) from error
        else:
            self._cluster.wrote(stored)

    async def _adopt(self, child: Child, wanted: JsonObject) -> None:
        """Something of the child's name is there that does not carry the label."""
        stored = await self._api.get(await self._path(child), _deadline())
        version = await self._api.resource_version(_deadline())
        found = Child(child.kind, _read(child.kind, version, stored))
        if not children.is_ours(found.object, wanted):
            label = (found.object["metadata"].get("labels") or {}).get(names.DOMAIN_LABEL)
            whose = f"of the ComputeDomain with the UID {label}" if label else "of somebody else"
            raise PermanentError(
                Reason.NAME_TAKEN,
                f"{child} is there already and is {whose}",
                "delete or rename it if it is not needed, or make the domain again with another "
                "name in spec.channel.resourceClaimTemplate.name",
                child=str(child),
            )
        await self._heal(found, wanted)

    async def _heal(self, child: Child, wanted: JsonObject) -> bool:
        healed = children.healed(child.object, wanted)
        if healed is None:
            return False
        if child.kind == "ResourceClaimTemplate" and children.changes_spec(child.object, wanted):
            await self._delete(child)  # its spec cannot be changed; the next look makes it anew
            return True
        path = await self._path(child)
        if child.kind == "ResourceClaimTemplate":
            stored = await self._api.patch(path, {"metadata": healed["metadata"]}, _deadline())
        else:
            stored = await self._api.replace(path, healed, _deadline())
        self._cluster.wrote(stored)
        return True

    async def _let_go(self, child: Child) -> bool:
        """Somebody deleted a child of a living domain: it must go before it can be made anew."""
        if names.DOMAIN_FINALIZER not in child.finalizers:
            return False  # others keep it, and the watch will say when it is gone
        await self._release(child)
        return True

    async def _delete(self, child: Child) -> None:
        path, uid = await self._path(child), child.object["metadata"]["uid"]
        try:
            answer = await self._api.delete(path, _deadline(), uid=uid)
        except NotFound:
            answer = {}
        if (answer.get("metadata") or {}).get("finalizers"):
            self._cluster.wrote(answer)
        else:
            self._gone(child)

    async def _release(self, child: Child) -> None:
        left = [name for name in child.finalizers if name != names.DOMAIN_FINALIZER]
        try:
            await self._set_finalizers(await self._path(child), child.object, left)
        except NotFound:
            self._gone(child)

    async def _dismiss(self, view: View) -> None:
        left = [name for name in _finalizers(view.stored) if name != names.DOMAIN_FINALIZER]
        try:
            await self._set_finalizers(_domain_path(view), view.stored, left)
        except NotFound:
            self._cluster.gone({**view.stored, **_DOMAIN})

    async def _unlabel(self, view: View, node: NodeName) -> None:
        """Only if the label still is this domain's: the node may have gone on to another one."""
        pointer = names.DOMAIN_LABEL.replace("~", "~0").replace("/", "~1")
        path = f"/metadata/labels/{pointer}"
        body = [
            {"op": "test", "path": path, "value": view.uid},
            {"op": "remove", "path": path},
        ]
        try:
            stored = await self._api.patch(
                f"/api/v1/nodes/{node}",
                body,
                _deadline(),
                content_type="application/json-patch+json",
            )
        except Invalid:
            return  # the label is another's by now, and the watch will say so
        except NotFound:
            return  # likewise for a node that is gone
        self._cluster.wrote(stored)

    async def _set_finalizers(self, path: str, obj: JsonObject, finalizers: list[str]) -> None:
        version = obj["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version, "finalizers": finalizers or None}}
        self._cluster.wrote(await self._api.patch(path, body, _deadline()))

    def _gone(self, child: Child) -> None:
        self._cluster.gone({**child.object, "kind": child.kind})

    async def _path(self, child: Child, *, is_collection: bool = False) -> str:
        name = "" if is_collection else child.name
        if child.kind == "DaemonSet":
            return cluster.daemonsets_path(child.namespace, name)
        version = await self._api.resource_version(_deadline())
        return apiversions.templates_path(version, child.namespace, name)

    async def _sent(self, child: Child) -> JsonObject:
        if child.kind == "DaemonSet":
            return child.object
        version = await self._api.resource_version(_deadline())
        return apiversions.template_to(version, child.object)


_DOMAIN: Final = {"apiVersion": names.CONFIG_API_VERSION, "kind": names.DOMAIN_KIND}


def _read(kind: Kind, version: str, stored: JsonObject) -> JsonObject:
    return apiversions.template_from(version, stored) if kind != "DaemonSet" else stored


def _domain_path(view: View) -> str:
    metadata = view.stored["metadata"]
    return cluster.domains_path(metadata["namespace"], metadata["name"])


def _finalizers(obj: JsonObject) -> list[str]:
    return list(obj["metadata"].get("finalizers") or ())


def _deadline() -> float:
    return asyncio.get_running_loop().time() + CALL_S
