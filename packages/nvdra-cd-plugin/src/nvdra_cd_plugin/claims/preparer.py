# SPDX-License-Identifier: Apache-2.0
"""Prepares and unprepares one claim: chooses the strategy for the claim's kind and carries it out.

Source: docs/reference/compute-domain.md, "Prepare and unprepare".
"""

from collections.abc import Iterator
from contextlib import contextmanager

from nvdra_api import names
from nvdra_api.gates import FeatureGates
from nvdra_api.ids import ClaimUID, DomainUID, NodeName
from nvdra_api.resource.claims import ResourceClaim
from nvdra_runtime.claims import opaque_configs
from nvdra_runtime.claims.device_wait_queue import NotifyWaiting
from nvdra_runtime.claims.prepare_result import PrepareResult
from nvdra_runtime.telemetry.instrumentation import Telemetry

from nvdra_cd_plugin.claims import plan
from nvdra_cd_plugin.claims.strategy import ClaimStrategy
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord


class Preparer:
    """Prepares the claims of this driver on one node.

    Attributes:
        in_progress: The claims that are being prepared, with their domains. Their files must stay
            although no record names them yet.
    """

    def __init__(
        self,
        node: NodeName,
        gates: FeatureGates,
        channels: ClaimStrategy,
        daemons: ClaimStrategy,
        telemetry: Telemetry,
        *,
        is_host_managed: bool,
    ) -> None:
        """Create it.

        Args:
            node: This node.
            gates: The feature gates, which decide which configs are accepted.
            channels: The strategy for claims of channels.
            daemons: The strategy for claims of daemons.
            telemetry: Where spans and measurements go.
            is_host_managed: The host runs IMEX, so claims of daemons are refused.
        """
        self.in_progress: dict[ClaimUID, DomainUID] = {}
        self._node = node
        self._gates = gates
        self._channels = channels
        self._daemons = daemons
        self._telemetry = telemetry
        self._is_host_managed = is_host_managed

    async def prepare(
        self, claim: ResourceClaim, deadline: float, notify: NotifyWaiting
    ) -> PrepareResult:
        """Make one attempt to give the claim its device.

        Args:
            claim: The claim as it was read just now.
            deadline: Monotonic seconds; every wait ends by then.
            notify: Called once if the wait takes long.

        Raises:
            DeviceInUseError: Another claim has the device; the caller waits and tries again.
            DriverError: A channel's claim may be recorded nevertheless; `prepare_again` continues.
        """
        with self._telemetry.step("resolve config"):
            configured = opaque_configs.resolve(
                claim, names.COMPUTE_DOMAIN_DRIVER, plan.config_type, self._gates
            )
            record = plan.make(claim, configured, self._node, is_host_managed=self._is_host_managed)
        with self._mark_in_progress(record):
            return await self._strategy(record).prepare(claim, record, deadline, notify)

    async def prepare_again(self, record: DomainClaimRecord, deadline: float) -> PrepareResult:
        """Return the same result as before, after checking that its files are in place.

        Raises:
            DriverError: As `prepare`.
        """
        return await self._strategy(record).prepare_again(record, deadline)

    async def unprepare(self, record: DomainClaimRecord, deadline: float) -> None:
        """Take back what the claim got, and remove its record.

        Raises:
            DriverError: The claim stays recorded.
        """
        await self._strategy(record).unprepare(record, deadline)

    def _strategy(self, record: DomainClaimRecord) -> ClaimStrategy:
        return self._channels if record.is_channel else self._daemons

    @contextmanager
    def _mark_in_progress(self, record: DomainClaimRecord) -> Iterator[None]:
        self.in_progress[record.uid] = record.domain
        try:
            yield
        finally:
            del self.in_progress[record.uid]
