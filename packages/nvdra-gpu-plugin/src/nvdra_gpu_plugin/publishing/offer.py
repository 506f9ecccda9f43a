# SPDX-License-Identifier: Apache-2.0
"""What of the GPUs that work is offered at present.

What cannot be had now is not offered, so that pods are scheduled elsewhere: what needs another MIG
mode of a GPU that cannot be switched, and what is to be undone of a claim that has ended. A GPU is
offered in the forms that `gpu_forms` says.
"""

from collections.abc import Callable, Mapping

from nvdra_api.ids import ClaimUID, PciAddress
from nvdra_runtime.claims.prepared_claims import PreparedClaims

from nvdra_gpu_plugin.devices import gpu_forms, released_claims
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.gpu_forms import Forms, Hold, Prebound
from nvdra_gpu_plugin.devices.inventory import Inventory
from nvdra_gpu_plugin.hardware.mode_refusals import ModeRefusals
from nvdra_gpu_plugin.passthrough.vfio_discovery import Passthrough


class Offer:
    """The offer of one node."""

    def __init__(
        self,
        mode_refusals: ModeRefusals,
        prepared_claims: PreparedClaims[GpuClaimRecord],
        prebound: Prebound | None,
    ) -> None:
        """Create it without any effect.

        Args:
            mode_refusals: The GPUs whose MIG mode cannot be switched now.
            prepared_claims: The claims of the node, with those that have ended.
            prebound: What becomes of GPUs that were bound to vfio by others; None if there are no
                vfio devices on this node.
        """
        self._mode_refusals = mode_refusals
        self._prepared_claims = prepared_claims
        self._prebound = prebound
        self._excludes_by_counters = True

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call it on the event loop whenever the same GPUs may offer something else."""
        self._mode_refusals.on_change(callback)
        self._prepared_claims.on_released_change(callback)
        if self._prebound is None:
            return

        def note_claim(_: ClaimUID) -> None:
            if not self._excludes_by_counters:
                callback()

        self._prepared_claims.on_prepared(note_claim)
        self._prepared_claims.on_removed(note_claim)

    def of(
        self, inventory: Inventory, passthrough: Passthrough, *, has_counters: bool
    ) -> Inventory:
        """What these GPUs offer.

        Args:
            inventory: The GPUs that work.
            passthrough: What the PCI bus says of them.
            has_counters: Whether the API server keeps counters.
        """
        found, self._excludes_by_counters = inventory, has_counters
        if self._prebound is not None:
            forms = self.forms(inventory, passthrough, self._prebound, has_counters=has_counters)
            found = gpu_forms.inventory(forms)
        kept = found.keeping_modes(self._mode_refusals.kept_modes)
        return released_claims.without_held(kept, self._prepared_claims.released)

    def forms(
        self,
        inventory: Inventory,
        passthrough: Passthrough,
        prebound: Prebound,
        *,
        has_counters: bool,
    ) -> tuple[Forms, ...]:
        """In which forms each GPU is offered; the arguments are those of `of` and of this."""
        return gpu_forms.find(
            inventory.gpus,
            {gpu.pci: gpu for gpu in passthrough.remembered},
            passthrough.candidates,
            self._held(),
            keeps_counters=has_counters,
            prebound=prebound,
        )

    def _held(self) -> Mapping[PciAddress, Hold]:
        """As what claims hold GPUs."""
        return {
            device.pci: Hold.VFIO if device.is_vfio else Hold.GPU
            for record in self._prepared_claims.values()
            for device in record.devices
            if device.pci and not device.is_admin
        }
