# SPDX-License-Identifier: Apache-2.0
"""MPS control daemons of claims. `mps.daemons` starts and stops them."""

from uuid import uuid4

from nvdra_api.errors import RetryableError
from nvdra_runtime.claims.changes import Keep, LateKind

from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.steps import ShareByMps
from nvdra_gpu_plugin.mps.daemons import MpsDaemons, not_ready_yet


class MpsDaemonKind(LateKind[GpuClaimRecord, ShareByMps]):
    """Starts and stops daemons."""

    def __init__(self, daemons: MpsDaemons) -> None:
        self._daemons = daemons

    async def inspect(self, claim: GpuClaimRecord, change: ShareByMps) -> ShareByMps:
        """An attempt that goes on knows its run already."""
        await self._daemons.check_driver(claim, change)
        return change if change.run else change.model_copy(update={"run": uuid4().hex})

    async def apply(
        self, claim: GpuClaimRecord, change: ShareByMps, keep: Keep[ShareByMps]
    ) -> ShareByMps:
        """Start the daemon. The devices of the claim are there, so that their UUIDs are known."""
        return await self._daemons.start(claim, change)

    async def is_in_force(self, claim: GpuClaimRecord, change: ShareByMps) -> bool:
        """Whether the daemon runs and has its settings."""
        return await self._daemons.is_ready(claim.ref, change)

    def pending(self, claim: GpuClaimRecord) -> RetryableError:
        """`MpsNotReady`."""
        return not_ready_yet(claim.ref)

    async def wait_in_force(self, claim: GpuClaimRecord, deadline: float) -> None:
        """Wait until all daemons of the claim run."""
        await self._daemons.wait_ready(claim, deadline)

    async def end(self, claim: GpuClaimRecord) -> None:
        """Stop all that was started for the claim. No request is sent."""
        await self._daemons.stop(claim)
