"""What is held although no record says so: taken over from the kubelet's checkpoint, at the start.

Records get lost with a damaged disk, and one that cannot be read tells nothing. The kubelet still
has what it was answered, and for whom. Until that has been looked at no GPU is given to a new
claim; where it cannot be, nobody can tell what is free. Source: design.md, "Settled", a corrupt
state file.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from nvdra_api.protocol.backoff import Backoff
from nvdra_api.runtime.node.store import Store
from nvdra_api.runtime.process.worker import Worker
from nvdra_api.runtime.telemetry import logs
from nvdra_api.types import names
from nvdra_api.types.claims import ClaimRef, ResourceClaim
from nvdra_api.types.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.types.ids import ClaimUID, GpuUUID, PciAddress

from nvdra_gpu_plugin.evidence import Evidence, KnownClaim, KnownDevice, NoEvidence
from nvdra_gpu_plugin.hardware import Hardware
from nvdra_gpu_plugin.held import HeldClaims
from nvdra_gpu_plugin.inventory import Inventory
from nvdra_gpu_plugin.records import HeldDevice, Holding

LOG = logs.logger(__name__)

_AGAIN = Backoff(first_s=1.0, ceiling_s=60.0)
_ATTEMPT_S = 2.0
_BOARD_S = 1.0
"""How long a board may take to say what it is: a healthy one takes milliseconds."""

Fetch = Callable[[ClaimRef, float], Awaitable[ResourceClaim]]
"""Reads a claim by the deadline, as a prepare does."""

Tell = Callable[[str], None]
"""Tells the node's administrator something about the state file."""


class Rebuild:
    """Makes the records say what the kubelet knows; `running` does it.

    Attributes:
        done: Set once everything that can be known is, so that nobody need wait for it.
    """

    def __init__(
        self,
        fetch: Fetch,
        store: Store,
        held: HeldClaims,
        hardware: Hardware,
        evidence: Evidence,
        tell: Tell,
    ) -> None:
        self.done = asyncio.Event()
        self._fetch = fetch
        self._store = store
        self._held = held
        self._hardware = hardware
        self._evidence = evidence
        self._tell = tell
        self._told = ""
        self._working = asyncio.Lock()
        self._obstacle = RetryableError(
            Reason.DEADLINE_EXCEEDED,
            "what the kubelet holds on this node has not been compared with our records yet",
            "it goes on by itself; if it lasts, see the plugin's log",
        )

    @property
    def is_done(self) -> bool:
        """Whether prepares need not wait for it."""
        return self.done.is_set()

    async def run(self) -> None:
        """Do it, as soon as the API server lets us; where evidence lacks, prepares try again."""
        for failures in itertools.count(1):
            try:
                await self.finish(asyncio.get_running_loop().time() + _ATTEMPT_S)
            except RetryableError as error:
                LOG.v(2, "The records are not complete yet", error=str(error))
                pause_s = _AGAIN.delay(failures, random.random())  # noqa: S311 - spreads load
                await asyncio.sleep(pause_s)
            else:
                return

    async def finish(self, deadline: float) -> None:
        """Look at what the kubelet knows, and take over what the records lack.

        Raises:
            RetryableError: `ApiUnavailable`, `DeadlineExceeded`, `StateUnavailable`: not yet.
        """
        try:
            async with asyncio.timeout_at(deadline):
                await self._working.acquire()
        except TimeoutError:
            raise self._obstacle from None
        try:
            if not self.is_done:
                await self._finish(deadline)
        except RetryableError as error:
            self._obstacle = error
            raise
        finally:
            self._working.release()

    async def _finish(self, deadline: float) -> None:
        try:
            async with Worker("evidence") as worker:
                known = await worker.run(self._evidence.claims)
        except NoEvidence as error:
            self._do_without(error)
            return
        await self._take_over(known, deadline)
        await self._forget_unreadable(known)
        await self._settle()

    def _do_without(self, why: NoEvidence) -> None:
        doubt = self._store.doubt
        if doubt is not None and not doubt.marker.exists():
            doubt = self._store.doubt = None  # somebody has vouched for it
        if doubt is None:
            self._held.doubt = ""
            if not self._held.unreadable:
                self.done.set()
            return
        self._held.doubt = (
            f"the state file was damaged and is set aside as {doubt.set_aside}, and what it said "
            f"cannot be taken from the kubelet either ({why})"
        )
        self._say(
            f"no GPU is given to new claims: {self._held.doubt}; make the kubelet's file readable, "
            f"or drain the node and remove {doubt.marker}"
        )

    async def _take_over(self, known: Mapping[ClaimUID, KnownClaim], deadline: float) -> None:
        """Write the records that are missing."""
        missing = [
            claim
            for uid, claim in known.items()
            if uid not in self._held and claim.devices(names.GPU_DRIVER)
        ]
        if missing:
            named = {each.device for claim in missing for each in claim.devices(names.GPU_DRIVER)}
            # One that hangs or is lost is known by its name until it is asked for again.
            with suppress(DriverError):
                patience = min(deadline, asyncio.get_running_loop().time() + _BOARD_S)
                await self._hardware.first_look(patience)
                await self._hardware.described(named, patience)
        snapshot = self._hardware.snapshot
        inventory = Inventory() if snapshot is None else snapshot.inventory
        for claim in missing:
            devices = claim.devices(names.GPU_DRIVER)
            monitored = await self._for_monitoring(claim, deadline)
            holding = _holding(claim, devices, inventory, monitored)
            await self._held.take(claim.ref, holding)
            LOG.warning(
                "Took over a claim that the kubelet holds and no record told of",
                claim=str(claim.ref),
                devices=[device.device for device in devices],
            )

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

    async def _forget_unreadable(self, known: Mapping[ClaimUID, KnownClaim]) -> None:
        """A record that nobody can read, of a claim that the kubelet does not hold, holds nothing.

        A claim that the kubelet is still preparing is prepared anew by its next call.
        """
        for uid, ref in tuple(self._held.unreadable.items()):
            await self._held.release(uid)
            LOG.warning(
                "Dropped a record that cannot be read: the kubelet was given nothing for it",
                claim=str(ref),
                is_known=uid in known,
            )

    async def _settle(self) -> None:
        doubt = self._store.doubt
        if doubt is not None:
            await self._store.settle()
            self._say(
                f"the state file was damaged and is set aside as {doubt.set_aside}; what is held "
                f"was taken from the kubelet's record: {len(self._held)} claims"
            )
        self._held.doubt = ""
        self.done.set()

    def _say(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._tell(text)


def _holding(
    claim: KnownClaim,
    devices: tuple[KnownDevice, ...],
    inventory: Inventory,
    monitored: frozenset[tuple[str, str]],
) -> Holding:
    return Holding(
        namespace=claim.namespace,
        name=claim.name,
        uid=claim.uid,
        generation=_generation(devices),
        pods=claim.pods,
        devices=tuple(_held_device(device, inventory, monitored) for device in devices),
    )


def _held_device(
    known: KnownDevice, inventory: Inventory, monitored: frozenset[tuple[str, str]]
) -> HeldDevice:
    gpu = inventory.by_name.get(known.device)
    request = known.requests[0] if known.requests else ""
    return HeldDevice(
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


@asynccontextmanager
async def running(rebuild: Rebuild) -> AsyncIterator[None]:
    """Complete the records while the block runs."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(rebuild.run(), name="rebuild")
        try:
            yield
        finally:
            task.cancel()
