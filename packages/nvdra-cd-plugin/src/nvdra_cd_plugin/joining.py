"""The node's membership in a domain follows from the channels that are held here.

From the first channel claim of a domain until its last one goes, the node carries the domain's
label; whoever changes it meanwhile is corrected. Only a label of another domain stays while no
channel has been given: then the claim has to wait. Source: spec/compute-domain.md §§1, 7.7.
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
        self._entering: set[ClaimUID] = set()
        self._leaving: set[ClaimUID] = set()

    def domain(self) -> DomainUID | None:
        """The domain whose channels are held and not on their way back."""
        for holding in self._held.values():
            if holding.is_channel and holding.uid not in self._leaving:
                return holding.domain
        return None

    async def join(self, holding: DomainHolding, deadline: float, pause: Pause) -> bool:
        """Label the node for a claim that is held; whether it was not yet.

        Until that has gone well nobody but us changes the label: it may be another domain's.

        Raises:
            RetryableError: `NodeInOtherDomain`; `ApiUnavailable`.
        """
        self._entering.add(holding.uid)
        is_new = await retrying.until(
            deadline, lambda at: self._labels.join(holding.domain, at), pause
        )
        self._entering.discard(holding.uid)
        return is_new

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
        self._entering.discard(holding.uid)
        self._leaving.discard(holding.uid)

    def lacks(self, label: str | None) -> bool:
        """Whether the node ought to have the label of a domain that is held, and has this one."""
        return bool(self.domain()) and self._right(label) != label

    async def keep(self, deadline: float) -> bool:
        """Put the label right, should somebody have changed it; False if nobody knows what is.

        Of a domain that is going or gone the controller has taken it off for good.

        Raises:
            RetryableError: `ApiUnavailable`.
        """
        for holding in [each for each in self._held.values() if each.is_channel]:
            if not holding.domain:
                return False
            try:
                await self._domains.find(holding.domain, holding.namespace, deadline)
            except PermanentError:
                return False
        await self._labels.keep(self._right, deadline)
        return True

    def _right(self, label: str | None) -> str | None:
        """The label that the node should have now, of which there is this one."""
        domain = self.domain()
        if self._entering or (label and domain and self._is_joining):
            return label
        return domain

    @property
    def _is_joining(self) -> bool:
        """Whether no channel has been given, so that nobody loses anything but time."""
        channels = (each for each in self._held.values() if each.is_channel)
        return all(each.is_joining for each in channels if each.uid not in self._leaving)
