"""ComputeDomains by UID, read when somebody needs one and remembered: what we keep cannot change.

There is no watch: a node has to do with one domain at a time, a cluster with thousands. That a
known domain is still there is asked by its name. Source: spec/compute-domain.md §14.1 (KW-3).
"""

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
        for path in (collection(namespace), f"{_API}/computedomains"):
            if (obj := await self._among(path, uid, deadline)) is not None:
                return obj
        return None

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
