"""The node's membership in a domain follows from the channels that are held here.

From the first channel claim of a domain until its last one goes, the node carries the domain's
label; whoever changes it meanwhile is corrected. Source: spec/compute-domain.md §§1, 7.7.
"""

from collections.abc import Mapping

from nvdra_api.types.errors import PermanentError
from nvdra_api.types.ids import ClaimUID, DomainUID

from nvdra_cd_plugin import retrying
from nvdra_cd_plugin.domains import Domains
from nvdra_cd_plugin.node_label import NodeLabels
from nvdra_cd_plugin.records import DomainHolding
from nvdra_cd_plugin.retrying import Pause


class Membership:
    """The domain that the node works for."""

    def __init__(
        self, labels: NodeLabels, held: Mapping[ClaimUID, DomainHolding], domains: Domains
    ) -> None:
        self._labels = labels
        self._domains = domains
        self._held = held
        self._leaving: set[ClaimUID] = set()

    def domain(self) -> DomainUID | None:
        """The domain whose channels are held and not on their way back."""
        for holding in self._held.values():
            if holding.is_channel and holding.uid not in self._leaving:
                return holding.domain
        return None

    async def join(self, holding: DomainHolding, deadline: float, pause: Pause) -> bool:
        """Label the node for a claim that is held; whether it was not yet.

        Raises:
            RetryableError: `NodeInOtherDomain`; `ApiUnavailable`.
        """
        return await retrying.until(
            deadline, lambda at: self._labels.join(holding.domain, at), pause
        )

    async def leave(self, holding: DomainHolding, deadline: float) -> None:
        """Take the label off with the last channel of the domain; call it before the release.

        Raises:
            RetryableError: `ApiUnavailable`: the claim has to stay held.
        """
        self._leaving.add(holding.uid)
        try:
            if self.domain() != holding.domain:
                await retrying.until(deadline, lambda at: self._labels.leave(holding.domain, at))
        except BaseException:
            self._leaving.discard(holding.uid)
            raise

    def left(self, holding: DomainHolding) -> None:
        """Note that the claim is released."""
        self._leaving.discard(holding.uid)

    async def keep(self, deadline: float) -> None:
        """Put the label right, should somebody have changed it; as far as we know what is right.

        Of a domain that is going or gone the controller has taken it off for good.

        Raises:
            RetryableError: `ApiUnavailable`.
        """
        for holding in [each for each in self._held.values() if each.is_channel]:
            try:
                await self._domains.find(holding.domain, holding.namespace, deadline)
            except PermanentError:
                return
        await self._labels.keep(self.domain, deadline)
