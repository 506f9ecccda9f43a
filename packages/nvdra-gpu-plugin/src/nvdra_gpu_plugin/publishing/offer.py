# SPDX-License-Identifier: Apache-2.0
"""What of the GPUs that work is offered at present.

What cannot be had now is not offered, so that pods are scheduled elsewhere: what needs another MIG
mode of a GPU that cannot be switched, and what is to be undone of a claim that has ended.
"""

from collections.abc import Callable

from nvdra_runtime.claims.prepared_claims import PreparedClaims

from nvdra_gpu_plugin.devices import released_claims
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.inventory import Inventory
from nvdra_gpu_plugin.hardware.mode_refusals import ModeRefusals


class Offer:
    """The offer of one node."""

    def __init__(
        self, mode_refusals: ModeRefusals, prepared_claims: PreparedClaims[GpuClaimRecord]
    ) -> None:
        """Create it without any effect.

        Args:
            mode_refusals: The GPUs whose MIG mode cannot be switched now.
            prepared_claims: The claims of the node, with those that have ended.
        """
        self._mode_refusals = mode_refusals
        self._prepared_claims = prepared_claims

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call it on the event loop whenever the same GPUs may offer something else."""
        self._mode_refusals.on_change(callback)
        self._prepared_claims.on_released_change(callback)

    def of(self, inventory: Inventory) -> Inventory:
        """What these GPUs offer."""
        kept = inventory.keeping_modes(self._mode_refusals.kept_modes)
        return released_claims.without_held(kept, self._prepared_claims.released)
