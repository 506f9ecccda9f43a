"""One claim, from start to end: `prepare` and `unprepare`.

The thinking is in `plan` and `conflicts`; here is the order of things. Nothing is answered here:
`plugin.service` turns what is returned or raised into the kubelet's answer.
"""

from collections.abc import Callable, Collection, Iterable
from contextlib import AsyncExitStack

from nvdra_api.protocol import allocation, configs
from nvdra_api.runtime.plugin.fetching import Claims
from nvdra_api.runtime.plugin.held import HeldClaims
from nvdra_api.runtime.plugin.turns import Tell
from nvdra_api.runtime.process.locks import Locks
from nvdra_api.runtime.telemetry.traces import Telemetry
from nvdra_api.types import keys, names
from nvdra_api.types.claims import ClaimRef, ResourceClaim
from nvdra_api.types.configs import GpuConfig
from nvdra_api.types.errors import PermanentError, Reason, RetryableError
from nvdra_api.types.gates import Gates
from nvdra_api.types.holdings import DeviceInUseError
from nvdra_api.types.ids import NodeName, PciAddress
from nvdra_api.types.prepared import PreparedClaim

from nvdra_gpu_plugin import plan
from nvdra_gpu_plugin.conflicts import Holdings
from nvdra_gpu_plugin.hardware import Hardware
from nvdra_gpu_plugin.plan import Plan
from nvdra_gpu_plugin.records import GpuHolding, HeldGpu, generations
from nvdra_gpu_plugin.survey import Snapshot


class Preparer:
    """Makes claims' devices usable on this node, and takes them back."""

    def __init__(
        self,
        node: NodeName,
        gates: Gates,
        claims: Claims,
        hardware: Hardware,
        held: HeldClaims[GpuHolding],
        holdings: Holdings,
        telemetry: Telemetry,
    ) -> None:
        self._node = node
        self._gates = gates
        self._claims = claims
        self._hardware = hardware
        self._held = held
        self._holdings = holdings
        self._telemetry = telemetry
        self._locks: Locks[PciAddress] = Locks()

    async def prepare(self, claim: ResourceClaim, deadline: float, tell: Tell) -> PreparedClaim:
        """Give the claim what it was allocated, as soon as no other claim holds it.

        Args:
            claim: As it was read just now.
            deadline: Monotonic seconds; every wait ends by then.
            tell: Called once when it takes long until another claim lets go.

        Raises:
            DriverError: Nothing is held that was not held before.
        """
        try:
            return await self._take(claim, deadline)
        except DeviceInUseError as error:
            refusal = error
        return await self._claims.in_turn(claim, refusal, self._take, deadline, tell)

    async def _take(self, claim: ResourceClaim, deadline: float) -> PreparedClaim:
        """Prepare the claim if its devices are free."""
        while True:
            snapshot = await self._snapshot(lambda: _allocated(claim), deadline)
            with self._telemetry.step("resolve config"):
                wanted = self._plan(claim, snapshot)
            async with AsyncExitStack() as stack:
                await self._lock(stack, claim.ref, wanted.gpus, deadline)
                self._check(wanted)
                await self._keep_spec(deadline)
                await self._verify(snapshot, wanted.holding.devices, deadline)
                # The node is looked at again and again: a plan made from another look is made anew.
                if self._hardware.snapshot is snapshot:
                    with self._telemetry.step("commit state"):
                        await self._held.take(claim.ref, wanted.holding)
                    return wanted.holding.answer()

    def _check(self, wanted: Plan) -> None:
        try:
            plan.check_free(wanted, self._holdings)
        except DeviceInUseError as error:
            error.since = self._held.since(error.holder.uid)
            raise
        plan.check_known(wanted, self._held.unreadable.values(), self._held.doubt)

    async def repeat(self, holding: GpuHolding, deadline: float) -> PreparedClaim:
        """Answer for a claim we hold as before, after proving that the answer is still true.

        The API server is not asked: what a pod holds does not depend on it.
        """
        snapshot = await self._snapshot(lambda: [d.device for d in holding.devices], deadline)
        if not all(device.uuid for device in holding.devices):
            holding = await self._complete(holding, snapshot)
        for device in holding.devices:
            _check_same_board(device, snapshot)
        self._check_generation(holding, snapshot)
        await self._keep_spec(deadline)
        await self._verify(snapshot, holding.devices, deadline)
        return holding.answer()

    async def _complete(self, holding: GpuHolding, snapshot: Snapshot) -> GpuHolding:
        """Note which boards a claim has whose record was rebuilt while they were not there."""
        boards = snapshot.inventory.by_name
        devices = tuple(
            device.model_copy(
                update={"pci": boards[device.device].pci, "uuid": boards[device.device].uuid}
            )
            if not device.uuid and device.device in boards
            else device
            for device in holding.devices
        )
        whole = holding.model_copy(update={"devices": devices})
        await self._held.take(whole.ref, whole)
        return whole

    async def unprepare(self, holding: GpuHolding, deadline: float) -> None:
        """Take back what the claim holds; its record is all that is needed."""
        boards = {device.pci for device in holding.devices}
        async with AsyncExitStack() as stack:
            await self._lock(stack, holding.ref, boards, deadline)
            with self._telemetry.step("commit state"):
                await self._held.release(holding.uid)
        if self._is_last_of_old_generation(holding):
            await self._hardware.retire_specs(generations(self._held.values()))

    async def _snapshot(self, devices: Callable[[], Collection[str]], deadline: float) -> Snapshot:
        """The hardware as it is; a call that comes before its devices were looked at waits."""
        if not self._hardware.has_looked:
            with self._telemetry.step("wait discovery"):
                await self._hardware.first_look(deadline)
        if not self._hardware.is_complete:
            with self._telemetry.step("wait discovery") as span:
                if not await self._hardware.described(devices(), deadline):
                    span.discard()
        snapshot = self._hardware.snapshot
        if snapshot is None:
            raise RetryableError(
                Reason.DRIVER_MISMATCH,
                f"the GPUs of node {self._node} cannot be used: {self._hardware.problem}",
                "install or repair the NVIDIA driver; the plugin goes on once it is there",
            )
        return snapshot

    def _plan(self, claim: ResourceClaim, snapshot: Snapshot) -> Plan:
        configured = configs.resolve(claim, names.GPU_DRIVER, lambda _: GpuConfig, self._gates)
        generation = snapshot.spec.generation
        return plan.make(claim, configured, snapshot.inventory, generation, self._node)

    async def _lock(
        self,
        stack: AsyncExitStack,
        ref: ClaimRef,
        boards: Iterable[PciAddress],
        deadline: float,
    ) -> None:
        with self._telemetry.step("wait lock") as span:
            waited = await stack.enter_async_context(
                self._locks.hold(boards, holder=str(ref), deadline=deadline)
            )
            self._telemetry.metrics.lock_wait(waited.seconds)
            if waited.holder is None:
                span.discard()
            else:
                span.set(keys.HOLDER, waited.holder)

    async def _keep_spec(self, deadline: float) -> None:
        """Have what the answer's names mean where the container runtime reads it."""
        if not self._hardware.has_own_spec:
            with self._telemetry.step("write cdi"):
                await self._hardware.keep_spec(deadline)

    async def _verify(
        self, snapshot: Snapshot, devices: Collection[HeldGpu], deadline: float
    ) -> None:
        boards = {device.uuid: device for device in devices}  # a claim may have one many times
        with self._telemetry.step(
            "verify devices", {keys.HW_TYPE: keys.HW_TYPE_GPU, keys.HW_ID: tuple(boards)}
        ):
            for device in boards.values():
                await self._hardware.prove(snapshot, device, deadline)

    def _check_generation(self, holding: GpuHolding, snapshot: Snapshot) -> None:
        """An older generation is fine as long as its spec is there for the runtime to read."""
        generation = holding.generation
        if generation != snapshot.spec.generation.name and not self._hardware.has_spec(generation):
            raise PermanentError(
                Reason.DRIVER_MISMATCH,
                f"claim {holding.ref} was prepared with driver generation {generation}, whose CDI "
                f"spec is gone; the node now has {snapshot.spec.generation.name}",
                "delete the pod, so that its claims are prepared anew",
                claim=str(holding.ref),
            )

    def _is_last_of_old_generation(self, holding: GpuHolding) -> bool:
        snapshot = self._hardware.snapshot
        is_current = snapshot is None or holding.generation == snapshot.spec.generation.name
        return not is_current and holding.generation not in generations(self._held.values())


def _allocated(claim: ResourceClaim) -> list[str]:
    return [result.device for result in allocation.results(claim, names.GPU_DRIVER)]


def _check_same_board(device: HeldGpu, snapshot: Snapshot) -> None:
    gpu = snapshot.inventory.by_name.get(device.device)
    if gpu is None or gpu.uuid != device.uuid:
        now = "not on the node" if gpu is None else f"another board now ({gpu.uuid})"
        raise PermanentError(
            Reason.UNKNOWN_DEVICE,
            f"{device.device} was {device.uuid or 'not known'} when the claim was prepared and is "
            f"{now}",
            "delete the pod, so that it is given a device that is there",
            device=device.device,
        )
