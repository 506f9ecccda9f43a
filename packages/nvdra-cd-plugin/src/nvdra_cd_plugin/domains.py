"""ComputeDomains by UID, read when somebody needs one and remembered: what we keep cannot change.

There is no watch: a node has to do with one domain at a time, a cluster with thousands. That a
known domain is still there is asked by its name. One that was nowhere is looked for in its claim's
namespace alone for a while, because UIDs do not come back and the kubelet asks again and again.
Source: spec/compute-domain.md §14.1 (KW-3).
"""

import asyncio
from collections import OrderedDict
from typing import Final

from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.errors import NotFound
from nvdra_api.types import names
from nvdra_api.types.domains import ComputeDomain
from nvdra_api.types.errors import PermanentError, Reason
from nvdra_api.types.ids import DomainUID

from nvdra_cd_plugin import membership
from nvdra_cd_plugin.membership import Domain

_API: Final = f"/apis/{names.CONFIG_API_VERSION}"
_PAGE: Final = "500"
_GONE_S: Final = 600.0
"""How long nobody looks through all domains of the cluster for one that was not among them."""
_MOST_GONE: Final = 256


def collection(namespace: str) -> str:
    """Path of the ComputeDomains of a namespace."""
    return f"{_API}/namespaces/{namespace}/computedomains"


def cliques(namespace: str) -> str:
    """Path of the ComputeDomainCliques of a namespace."""
    return f"{_API}/namespaces/{namespace}/computedomaincliques"


class Domains:
    """The domains that this node has had to do with."""

    def __init__(self, api: Client) -> None:
        self._api = api
        self._known: dict[DomainUID, Domain] = {}
        self._gone: OrderedDict[DomainUID, float] = OrderedDict()

    async def find(self, uid: DomainUID, namespace: str, deadline: float) -> Domain:
        """The domain, as the API server has it now.

        Args:
            uid: Which one.
            namespace: Where to look first.
            deadline: Monotonic seconds.

        Raises:
            PermanentError: `DomainNotFound`: there is none, or it is being deleted.
            RetryableError: `ApiUnavailable`.
        """
        obj = await self._found(uid, namespace, deadline)
        if obj is None:
            self._known.pop(uid, None)
            self._note_gone(uid)
            raise PermanentError(
                Reason.DOMAIN_NOT_FOUND,
                f"there is no ComputeDomain with UID {uid}",
                "use the claim template of a ComputeDomain that is there; of one that was made "
                "anew, delete the pods that still have claims of the former",
                domain=uid,
            )
        domain = membership.read(ComputeDomain.model_validate(obj))
        self._known[uid] = domain
        if obj["metadata"].get("deletionTimestamp"):
            raise PermanentError(
                Reason.DOMAIN_NOT_FOUND,
                f"ComputeDomain {domain} (UID {uid}) is being deleted",
                "nothing to do: its workload's claims cannot be prepared any more",
                domain=uid,
            )
        return domain

    async def _found(self, uid: DomainUID, namespace: str, deadline: float) -> JsonObject | None:
        known = self._known.get(uid)
        if known is not None:
            return await self._by_name(known, deadline)
        paths = [collection(namespace)]
        if asyncio.get_running_loop().time() >= self._gone.get(uid, 0.0):
            paths.append(f"{_API}/computedomains")
        for path in paths:
            if (obj := await self._among(path, uid, deadline)) is not None:
                return obj
        return None

    def _note_gone(self, uid: DomainUID) -> None:
        """Begins when it was found to be nowhere, and not anew with every claim that asks."""
        now = asyncio.get_running_loop().time()
        if now >= self._gone.get(uid, 0.0):
            self._gone.pop(uid, None)
            self._gone[uid] = now + _GONE_S
            while len(self._gone) > _MOST_GONE:
                self._gone.popitem(last=False)

    async def _by_name(self, known: Domain, deadline: float) -> JsonObject | None:
        try:
            obj = await self._api.get(f"{collection(known.namespace)}/{known.name}", deadline)
        except NotFound:
            return None
        return obj if obj["metadata"]["uid"] == known.uid else None

    async def _among(self, path: str, uid: DomainUID, deadline: float) -> JsonObject | None:
        """By UID, which no selector selects: looked for page by page."""
        params = {"limit": _PAGE}
        while True:
            page = await self._api.get(path, deadline, params)
            for obj in page["items"]:
                if obj["metadata"]["uid"] == uid:
                    return dict(obj)
            if not (rest := page["metadata"].get("continue")):
                return None
            params = {"limit": _PAGE, "continue": rest}
