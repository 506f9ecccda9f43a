"""Claims that the kubelet knows and no record tells of: which boards are they on?

The part of `nvdra_api.runtime.plugin.rebuild` that is about GPUs.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

from nvdra_api.runtime.plugin.evidence import KnownClaim, KnownDevice
from nvdra_api.runtime.plugin.fetching import Fetch
from nvdra_api.types import names
from nvdra_api.types.errors import DriverError, PermanentError
from nvdra_api.types.ids import GpuUUID, PciAddress

from nvdra_gpu_plugin.hardware import Hardware
from nvdra_gpu_plugin.inventory import Inventory
from nvdra_gpu_plugin.records import GpuHolding, HeldGpu

_BOARD_S = 1.0
"""How long a board may take to say what it is: a healthy one takes milliseconds."""


class Adoption:
    """Finds out what claims hold that no record tells of."""

    def __init__(self, hardware: Hardware, fetch: Fetch) -> None:
        self._hardware = hardware
        self._fetch = fetch

    async def adopt(
        self, claims: Sequence[KnownClaim], deadline: float
    ) -> AsyncGenerator[GpuHolding, None]:
        """What each of them holds; `plugin.rebuild` records it.

        Raises:
            RetryableError: `ApiUnavailable`: it cannot be told yet whether one is for monitoring.
        """
        named = {each.device for claim in claims for each in claim.devices(names.GPU_DRIVER)}
        # One that hangs or is lost is known by its name until it is asked for again.
        with suppress(DriverError):
            patience = min(deadline, asyncio.get_running_loop().time() + _BOARD_S)
            await self._hardware.first_look(patience)
            await self._hardware.described(named, patience)
        snapshot = self._hardware.snapshot
        inventory = Inventory() if snapshot is None else snapshot.inventory
        for claim in claims:
            yield _holding(claim, inventory, await self._for_monitoring(claim, deadline))

    async def _for_monitoring(
        self, claim: KnownClaim, deadline: float
    ) -> frozenset[tuple[str, str]]:
        """Request and device of each result that is for monitoring only; the kubelet forgets it."""
        try:
            found = await self._fetch(claim.ref, deadline)
        except PermanentError:
            return frozenset()  # it is gone: what may exclude others has to
        allocation = found.status.allocation
        results = () if allocation is None else allocation.devices.results
        return frozenset(
            (result.base_request, result.device)
            for result in results
            if result.driver == names.GPU_DRIVER and result.admin_access
        )


def _holding(
    claim: KnownClaim, inventory: Inventory, monitored: frozenset[tuple[str, str]]
) -> GpuHolding:
    devices = claim.devices(names.GPU_DRIVER)
    return GpuHolding(
        namespace=claim.namespace,
        name=claim.name,
        uid=claim.uid,
        generation=_generation(devices),
        pods=claim.pods,
        devices=tuple(_held_gpu(device, inventory, monitored) for device in devices),
    )


def _held_gpu(
    known: KnownDevice, inventory: Inventory, monitored: frozenset[tuple[str, str]]
) -> HeldGpu:
    gpu = inventory.by_name.get(known.device)
    request = known.requests[0] if known.requests else ""
    return HeldGpu(
        request=request,
        pool=known.pool,
        device=known.device,
        pci=PciAddress("") if gpu is None else gpu.pci,
        uuid=GpuUUID("") if gpu is None else gpu.uuid,
        is_admin=(request, known.device) in monitored,
        share_id=known.share_id,
        cdi_id=known.cdi_ids[0] if known.cdi_ids else "",
    )


def _generation(devices: tuple[KnownDevice, ...]) -> str:
    """The CDI spec that the kubelet was given names of: `<kind>=<device>-<generation>`."""
    for device in devices:
        for cdi_id in device.cdi_ids:
            kind, _, name = cdi_id.partition("=")
            if kind == names.GPU_CDI_DEVICE_KIND and name.startswith(f"{device.device}-"):
                return name.removeprefix(f"{device.device}-")
    return ""
