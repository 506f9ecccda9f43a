# SPDX-License-Identifier: Apache-2.0
"""What the preparer expects of each kind of claim.

`domain_channel`, `host_channel` and `domain_daemon` each implement it for one kind.
"""

from typing import Protocol

from nvdra_api.resource.claims import ResourceClaim
from nvdra_runtime.claims.device_wait_queue import NotifyWaiting
from nvdra_runtime.claims.prepare_result import PrepareResult

from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord


class ClaimStrategy(Protocol):
    """Prepares and unprepares the claims of one kind."""

    async def prepare(
        self,
        claim: ResourceClaim,
        record: DomainClaimRecord,
        deadline: float,
        notify: NotifyWaiting,
    ) -> PrepareResult:
        """Give the claim its device. The claim is recorded when this returns.

        Args:
            claim: The claim as the API server returned it.
            record: What the claim asks for; it is not stored yet.
            deadline: Monotonic seconds; every wait ends by then.
            notify: Called once if the wait takes long.

        Raises:
            DeviceInUseError: Another claim has the device.
            DriverError: Any other reason.
        """

    async def prepare_again(self, record: DomainClaimRecord, deadline: float) -> PrepareResult:
        """Return the same result as before, after checking that its files are in place."""

    async def unprepare(self, record: DomainClaimRecord, deadline: float) -> None:
        """Take back what the claim got. Its record is removed when this returns."""
