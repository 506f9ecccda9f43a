# SPDX-License-Identifier: Apache-2.0
"""The claims of this node, as the state file has them."""

from dataclasses import dataclass

from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.kubeletplugin.plugin_context import PluginContext

from nvdra_gpu_plugin.devices.claim_index import GpuClaimIndex
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord


@dataclass(frozen=True, slots=True)
class Records:
    """The claims.

    Attributes:
        prepared_claims: Their records.
        index: Finds them by GPU and pod.
        waits: The prepares that wait until a claim is unprepared.
    """

    prepared_claims: PreparedClaims[GpuClaimRecord]
    index: GpuClaimIndex
    waits: DeviceWaitQueue


def load(context: PluginContext) -> Records:
    """Read the records."""
    index = GpuClaimIndex()
    prepared_claims = PreparedClaims(
        context.store, GpuClaimRecord, context.metrics.set_prepared, index
    )
    return Records(prepared_claims, index, DeviceWaitQueue(prepared_claims.wait_removed))
