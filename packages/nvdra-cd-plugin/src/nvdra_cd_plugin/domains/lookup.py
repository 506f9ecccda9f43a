# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains by UID, read from the API server when a claim needs one.

There is no watch: a node has to do with one domain at a time, a cluster with thousands. Only the
immutable facts are cached. A domain whose name is known, or said by the claim, is read by a GET.
The UID of what was read decides: a claim that names another domain than its config gets the one of
its config. Without a name the domain is searched for. A UID that was not found is looked for in the
claim's namespace only for a while, because UIDs are never used again and the kubelet repeats its
call.

Source: docs/reference/compute-domain.md, "Scalability and latency" (KW-3).
"""

import asyncio
from collections import OrderedDict
from typing import Final

from nvdra_api import names
from nvdra_api.errors import PermanentError, Reason
from nvdra_api.ids import DomainUID
from nvdra_api.meta import JsonObject
from nvdra_api.v1beta1 import ComputeDomain
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import NotFound

from nvdra_cd_plugin.domains.api_retry import retry_for_claim
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord
from nvdra_cd_plugin.domains.domain import Domain, domain_of
from nvdra_cd_plugin.domains.uid_search import UidSearch

_API: Final = f"/apis/{names.NVIDIA_API_VERSION}"
_NOT_FOUND_S: Final = 600.0
"""How long a UID that was not found is not looked for in the whole cluster again."""
_MAX_NOT_FOUND: Final = 256


def computedomains_path(namespace: str) -> str:
    """The path of the ComputeDomains of a namespace."""
    return f"{_API}/namespaces/{namespace}/computedomains"


def cliques_path(namespace: str) -> str:
    """The path of the ComputeDomainCliques of a namespace."""
    return f"{_API}/namespaces/{namespace}/computedomaincliques"


class DomainLookup:
    """Finds ComputeDomains and remembers those that were found."""

    def __init__(self, api: Client, waits: DeviceWaitQueue) -> None:
        """Create it without any request.

        Args:
            api: The API server.
            waits: Ends a wait for the API server when the claim is no longer wanted.
        """
        self._api = api
        self._waits = waits
        self._search = UidSearch(api)
        self._known: dict[DomainUID, Domain] = {}
        self._not_found_until: OrderedDict[DomainUID, float] = OrderedDict()

    async def find_for_claim(self, record: DomainClaimRecord, deadline: float) -> Domain:
        """The claim's domain; repeats the request while the API server does not answer.

        Raises:
            PermanentError: `DomainNotFound`.
            RetryableError: `ApiUnavailable`.
        """
        return await retry_for_claim(
            record.ref,
            self._waits,
            deadline,
            lambda attempt: self.find(record, attempt),
        )

    async def find(self, record: DomainClaimRecord, deadline: float) -> Domain:
        """The claim's domain as the API server has it now.

        Args:
            record: The claim; its domain's name may be wrong or missing.
            deadline: Monotonic seconds.

        Raises:
            PermanentError: `DomainNotFound`: it does not exist, or it is being deleted.
            RetryableError: `ApiUnavailable`.
        """
        uid = record.domain
        obj = await self._fetch(record, deadline)
        if obj is None:
            self._known.pop(uid, None)
            self._remember_not_found(uid)
            raise PermanentError(
                Reason.DOMAIN_NOT_FOUND,
                f"there is no ComputeDomain with UID {uid}",
                "use the claim template of a ComputeDomain that exists; if the ComputeDomain was "
                "deleted and created again, delete the pods that still have claims of the old one",
                domain=uid,
            )
        domain = domain_of(ComputeDomain.model_validate(obj))
        self._known[uid] = domain
        if obj["metadata"].get("deletionTimestamp"):
            named = f"ComputeDomain {domain} (UID {uid}) is being deleted"
            # Every tenant may write a UID into a claim's config.
            is_own = record.namespace == domain.namespace
            raise PermanentError(
                Reason.DOMAIN_NOT_FOUND,
                named if is_own else f"ComputeDomain {uid} is being deleted",
                "nothing to do: its workload's claims cannot be prepared any more",
                operator_message=named,
                domain=uid,
            )
        return domain

    async def _fetch(self, record: DomainClaimRecord, deadline: float) -> JsonObject | None:
        uid = record.domain
        known = self._known.get(uid)
        if known is not None:
            return await self._get_by_name(uid, known.namespace, known.name, deadline)
        if _may_name_domain(record):
            namespace, name = record.domain_namespace, record.domain_name
            if (obj := await self._get_by_name(uid, namespace, name, deadline)) is not None:
                return obj
        paths = [computedomains_path(record.namespace)]
        if asyncio.get_running_loop().time() >= self._not_found_until.get(uid, 0.0):
            paths.append(f"{_API}/computedomains")
        for path in paths:
            found = await self._search.find(path, uid, deadline)
            if found is not None:
                return await self._get_by_name(uid, found.namespace, found.name, deadline)
        return None

    def _remember_not_found(self, uid: DomainUID) -> None:
        """Start the period; a later request for the same UID does not prolong it."""
        now = asyncio.get_running_loop().time()
        if now >= self._not_found_until.get(uid, 0.0):
            self._not_found_until.pop(uid, None)
            self._not_found_until[uid] = now + _NOT_FOUND_S
            while len(self._not_found_until) > _MAX_NOT_FOUND:
                self._not_found_until.popitem(last=False)

    async def _get_by_name(
        self, uid: DomainUID, namespace: str, name: str, deadline: float
    ) -> JsonObject | None:
        """The object of that name if it has the UID."""
        try:
            obj = await self._api.get(f"{computedomains_path(namespace)}/{name}", deadline)
        except NotFound:
            return None
        return obj if obj["metadata"]["uid"] == uid else None


def _may_name_domain(record: DomainClaimRecord) -> bool:
    """Whether the record has a name, in a namespace in which the domain of such a claim can be."""
    is_allowed = not record.is_channel or record.domain_namespace == record.namespace
    return bool(record.domain_name) and is_allowed
