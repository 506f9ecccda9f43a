# SPDX-License-Identifier: Apache-2.0
"""The node's membership in a domain, which follows from the recorded channel claims.

From the first channel claim of a domain until the last one is unprepared, the node has the
domain's label. A label that changes meanwhile is corrected, with one exception: while no
channel has been given, the label of another domain stays and the claim waits.

Source: docs/reference/compute-domain.md, "Overview", "Prepare and unprepare".
"""

from nvdra_api.errors import PermanentError
from nvdra_api.ids import ClaimUID, DomainUID
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.claims.prepared_claims import PreparedClaims

from nvdra_cd_plugin.domains.api_retry import retry, retry_for_claim
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord
from nvdra_cd_plugin.domains.lookup import DomainLookup
from nvdra_cd_plugin.membership.node_labels import NodeLabels


class NodeMembership:
    """The domain that the node is a member of."""

    def __init__(
        self,
        labels: NodeLabels,
        prepared_claims: PreparedClaims[DomainClaimRecord],
        domains: DomainLookup,
        waits: DeviceWaitQueue,
    ) -> None:
        self._labels = labels
        self._prepared_claims = prepared_claims
        self._domains = domains
        self._waits = waits
        self._joining: set[ClaimUID] = set()
        self._leaving: set[ClaimUID] = set()
        prepared_claims.on_removed(self.forget)

    def domain(self) -> DomainUID | None:
        """The domain of the recorded channels, without those that are being unprepared."""
        for record in self._prepared_claims.values():
            if record.is_channel and record.uid not in self._leaving:
                return record.domain
        return None

    async def join(self, record: DomainClaimRecord, deadline: float) -> bool:
        """Label the node for a recorded claim; return whether it did not have the label yet.

        Until this succeeds, `reconcile_label` leaves the label alone: it may be another domain's.

        Raises:
            RetryableError: `NodeInOtherDomain`, `ApiUnavailable`.
        """
        self._joining.add(record.uid)
        is_new = await retry_for_claim(
            record.ref,
            self._waits,
            deadline,
            lambda attempt: self._labels.set_domain_label(record.domain, attempt),
        )
        self._joining.discard(record.uid)
        return is_new

    async def leave(self, record: DomainClaimRecord, deadline: float) -> None:
        """Remove the label with the domain's last channel. Call it before the record is removed.

        Raises:
            RetryableError: `ApiUnavailable`: the record must stay.
        """
        self._leaving.add(record.uid)
        try:
            if self.domain() != record.domain:
                await retry(
                    deadline,
                    lambda attempt: self._labels.remove_domain_label(record.domain, attempt),
                )
        except BaseException:
            self._leaving.discard(record.uid)
            raise

    def forget(self, uid: ClaimUID) -> None:
        """Forget a claim that neither joins nor leaves any more."""
        self._joining.discard(uid)
        self._leaving.discard(uid)

    def needs_correction(self, label: str | None) -> bool:
        """Whether the node should have a domain's label, and has this one instead."""
        return bool(self.domain()) and self._desired_label(label) != label

    async def reconcile_label(self, deadline: float) -> bool:
        """Correct the label if it was changed; return False if the right one is unknown.

        The label of a domain that is being deleted is not restored: the controller removed it.
        Claims that wait for the daemon of such a domain are answered.

        Raises:
            RetryableError: `ApiUnavailable`.
        """
        for record in [each for each in self._prepared_claims.values() if each.is_channel]:
            if not record.domain:
                return False
            try:
                await self._domains.find(record, deadline)
            except PermanentError as error:
                self._waits.fail(record.uid, error)
                return False
        await self._labels.reconcile_domain_label(self._desired_label, deadline)
        return True

    def _desired_label(self, label: str | None) -> str | None:
        """The label that the node should have, given the label that it has."""
        domain = self.domain()
        if self._joining or (label and domain and self._has_no_channel_given):
            return label
        return domain

    @property
    def _has_no_channel_given(self) -> bool:
        """Whether every claim still waits, so that another domain's label costs only time."""
        channels = (record for record in self._prepared_claims.values() if record.is_channel)
        return all(channel.is_joining for channel in channels if channel.uid not in self._leaving)
