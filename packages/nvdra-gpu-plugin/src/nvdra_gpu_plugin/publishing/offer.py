# SPDX-License-Identifier: Apache-2.0
"""What of the GPUs that work is offered at present.

What cannot be had now is not offered, so that pods are scheduled elsewhere: what needs another MIG
mode of a GPU that cannot be switched, and what is to be undone of a claim that has ended. A GPU is
offered in the forms that `gpu_forms` says.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from nvdra_api.ids import ClaimUID, PciAddress
from nvdra_runtime.claims.prepared_claims import PreparedClaims

from nvdra_gpu_plugin.devices import gpu_forms, released_claims
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord
from nvdra_gpu_plugin.devices.gpu_forms import Hold, Prebound
from nvdra_gpu_plugin.devices.inventory import Fault, Inventory
from nvdra_gpu_plugin.hardware.mode_refusals import ModeRefusals
from nvdra_gpu_plugin.passthrough.vfio_discovery import Passthrough
from nvdra_gpu_plugin.publishing import vfio_offers
from nvdra_gpu_plugin.publishing.vfio_offers import VfioOffer


class Offered(NamedTuple):
    """What is offered now.

    Attributes:
        inventory: The devices.
        vfio: What becomes of each GPU as a vfio device; nothing without the gate.
    """

    inventory: Inventory
    vfio: tuple[VfioOffer, ...]


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
        self,
        inventory: Inventory,
        faults: Iterable[Fault],
        passthrough: Passthrough,
        *,
        has_counters: bool,
    ) -> Offered:
        """What these GPUs offer.

        Args:
            inventory: The GPUs that NVML describes.
            faults: Those of them, and of others, that are not offered.
            passthrough: What the PCI bus says of them.
            has_counters: Whether the API server keeps counters.
        """
        self._excludes_by_counters = has_counters
        faulty = {fault.device for fault in faults}
        found, vfio = inventory.without_devices(faulty), tuple[VfioOffer, ...]()
        if self._prebound is not None:
            forms = gpu_forms.find(
                found.gpus,
                {gpu.pci: gpu for gpu in passthrough.remembered},
                passthrough.candidates,
                self._held(),
                keeps_counters=has_counters,
                prebound=self._prebound,
                unhealthy={gpu.pci for gpu in passthrough.remembered if gpu.name in faulty},
            )
            found, vfio = gpu_forms.inventory(forms), vfio_offers.find(forms, passthrough)
        kept = found.keeping_modes(self._mode_refusals.kept_modes)
        left = released_claims.without_held(kept, self._prepared_claims.released)
        return Offered(left, vfio)

    def _held(self) -> Mapping[PciAddress, Hold]:
        """As what claims hold GPUs."""
        return {
            device.pci: _hold(record, device)
            for record in self._prepared_claims.values()
            for device in record.devices
            if device.pci and not device.is_admin
        }


def _hold(record: GpuClaimRecord, device: GpuDeviceRecord) -> Hold:
    if not device.is_vfio:
        return Hold.GPU
    return Hold.UNDO_FAILED if record.is_released else Hold.VFIO
