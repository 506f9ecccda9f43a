# SPDX-License-Identifier: Apache-2.0
"""MPS control daemons of claims. `mps.daemons` starts and stops them."""

from uuid import uuid4

from nvdra_gpu_plugin.claims.changes.kind import ChangeKind
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.steps import ShareByMps


class MpsDaemonKind(ChangeKind[ShareByMps]):
    """Knows the daemons of an attempt from those of an earlier one."""

    async def inspect(self, claim: GpuClaimRecord, change: ShareByMps) -> ShareByMps:
        """An attempt that goes on knows its run already."""
        return change if change.run else change.model_copy(update={"run": uuid4().hex})
