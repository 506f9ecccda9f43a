# SPDX-License-Identifier: Apache-2.0
"""Queries one GPU again and again, on a thread of its own.

A probe first asks what the GPU is, and then whether it still responds. So a GPU that hangs, falls
off the bus or comes back is noticed before a claim needs it. `DeviceMonitor` decides what follows.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeVar, TypeVarTuple

from nvdra_api.ids import DeviceName, GpuUUID, MigUUID, PciAddress
from nvdra_runtime.node import nvml_fields, nvml_mig
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.nvml import DeviceHandle, FabricInfo, Nvml, NvmlError, ReturnCode
from nvdra_runtime.node.nvml_fields import Field
from nvdra_runtime.process import timeouts
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.devices import device_names
from nvdra_gpu_plugin.devices.gpu_loss import GpuLoss
from nvdra_gpu_plugin.devices.gpu_numbers import MINORS_ONLY, GpuNumbers
from nvdra_gpu_plugin.devices.inventory import Device, Fault, Gpu, MadePlaces, MigDevice
from nvdra_gpu_plugin.driver import installation
from nvdra_gpu_plugin.driver.nvml_sessions import NvmlSession
from nvdra_gpu_plugin.hardware import discovery, mig_discovery
from nvdra_gpu_plugin.hardware.discovery import DiscoveredGpu
from nvdra_gpu_plugin.hardware.gpu_errors import GpuErrors
from nvdra_gpu_plugin.hardware.mig_discovery import InMigModeError, Instances, Listing

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LOG = logs.logger(__name__)

_INTERVAL_S: Final = 10.0
"""Between two queries. One takes some 20 µs, and each claim queries the GPU by itself, too."""

UNRESPONSIVE_S: Final = 10.0
"""A GPU that does not respond for so long is not published until it does. NVML responds within
milliseconds, under load within a few seconds. The first client of a GPU without persistence mode
waits 1 to 3 s.

Source: docs/reference/gpu-devices.md, "Loading and initialisation".
"""

CHANGE_S: Final = 20.0
"""How long a claim waits for a change of a GPU. Making a MIG device takes less than a second,
destroying one about a second, switching its mode two, and nvidia-smi seconds on a busy node. A pod
whose claim changes a GPU that hangs is gone within half a minute."""

_REMEDY: Final = (
    "look for Xid messages in the node's kernel log; reset the GPU, or reboot the node; it is "
    "offered again once it answers"
)


MadeForClaims = Callable[[GpuUUID], MadePlaces]
"""Where on a GPU MIG devices are made for claims. Called on the GPU's thread."""


def nothing_made(gpu: GpuUUID) -> MadePlaces:
    """No MIG device is made for claims: as `MadeForClaims`."""
    del gpu
    return frozenset()


class _QueryResult(NamedTuple):
    """What the GPU is, or an error; neither if it works as before, or only drives a screen."""

    found: DiscoveredGpu | None = None
    error: NvmlError | ValueError | None = None
    made: MadePlaces = frozenset()


class _Moment(NamedTuple):
    """A moment on the monotonic clock and on the wall clock."""

    monotonic: float
    time: datetime


class GpuProbe:
    """The probe of one GPU in one NVML session.

    Attributes:
        worker: The GPU's thread.
        gpu: What the GPU is. Until it is described, what the former session found in its place.
        handle: The session's handle; None until the GPU is described.
        answered_at: When the first query of this session ended, with or without an error, in
            monotonic seconds; None if it has not.
        is_compute: False if the GPU only drives a screen; True until this is known.
        partitions_problem: Why nothing can be made on the GPU until it is asked again; empty if
            there is no problem.
    """

    def __init__(
        self,
        session: NvmlSession,
        index: int,
        host: Host,
        clock: Clock,
        worker: Worker,
        previous: Gpu | None,
        made_for_claims: MadeForClaims = nothing_made,
        finds_partitions: bool = False,
        numbers: GpuNumbers = MINORS_ONLY,
    ) -> None:
        self.worker = worker
        self.gpu = previous
        self.handle: DeviceHandle | None = None
        self.answered_at: float | None = None
        self.is_compute = True
        self.partitions_problem = ""
        self._session = session
        self._index = index
        self._host = host
        self._clock = clock
        self._made_for_claims = made_for_claims
        self._made: MadePlaces = frozenset()
        self._mode = False
        self._finds_partitions = finds_partitions
        self._numbers = numbers
        self._mig_devices: Listing = {}
        self._instances: Instances = frozenset()
        self._present: frozenset[tuple[int, int, MigUUID]] = frozenset()
        self._number: int | None = None
        self._errors = GpuErrors(clock.now())
        self._query_started: _Moment | None = None
        self._claim_unanswered_since: _Moment | None = None
        self._woken = asyncio.Event()

    @property
    def name(self) -> DeviceName | None:
        """The device name; None until it is known."""
        if self.gpu is not None:
            return self.gpu.name
        return None if self._number is None else device_names.gpu_name(self._number)

    @property
    def has_answered(self) -> bool:
        """Whether the first query of this session has ended, with or without an error."""
        return self.answered_at is not None

    @property
    def is_awaited(self) -> bool:
        """Whether the GPU has not answered yet, and may still be starting."""
        return not self.has_answered and not self.is_overdue

    @property
    def works(self) -> bool:
        """Whether the GPU has answered and can be used."""
        return self.has_answered and self.fault is None

    @property
    def fault(self) -> Fault | None:
        """Why the GPU cannot be used; None if it can, or if it has not answered yet."""
        if self.is_overdue:
            return Fault(self._device, self.silence)
        if self.has_errors:
            errors = self._errors
            since = _rfc3339(errors.since)
            text = f"{self._description} does not work since {since}: {errors.text}; {_REMEDY}"
            return Fault(self._device, text, is_lost=errors.is_loss_certain)
        return None

    @property
    def has_errors(self) -> bool:
        """Whether the last answer of the GPU was an error."""
        return bool(self._errors.text) and not self.is_overdue

    @property
    def loss(self) -> GpuLoss | None:
        """Why the GPU counts as lost, by its own answers; None if it does not."""
        return self._errors.loss(self._clock.monotonic()) if self.has_errors else None

    @property
    def silence(self) -> str:
        """Since when the GPU has not answered, and what to do if it lasts."""
        since = _rfc3339((self._waiting_since or self._now()).time)
        return f"{self._description} has not answered NVML since {since}; {_REMEDY}"

    @property
    def _device(self) -> str:
        return self.name or f"the GPU at index {self._index}"

    @property
    def _description(self) -> str:
        """The device with its UUID, if it is known."""
        return self._device if self.gpu is None else f"{self._device} ({self.gpu.uuid})"

    def wake(self) -> None:
        """Query the GPU at once."""
        self._woken.set()

    async def ask(self, function: Callable[[*Ts], T], *arguments: *Ts, deadline: float) -> T:
        """Call `function` on the GPU's thread, for a claim.

        Raises:
            TimeoutError: The GPU does not answer by the deadline, or as long as any GPU that works
                needs. If this is known already, it is raised at once.
        """
        if self.is_overdue:
            raise TimeoutError
        return await self._run(function, *arguments, timeout_s=UNRESPONSIVE_S, deadline=deadline)

    async def change(self, function: Callable[[*Ts, Nvml, DeviceHandle], T], *arguments: *Ts) -> T:
        """Call `function` on the GPU's thread, with the session and the GPU's handle.

        A call that has begun runs to its end, whether or not anybody waits for it.

        Raises:
            TimeoutError: It does not return within `CHANGE_S`. The GPU counts as overdue until it
                answers a query, which waits behind the call.
        """
        assert self.handle is not None
        return await self._run(
            function, *arguments, self._session.nvml, self.handle, timeout_s=CHANGE_S
        )

    async def _run(
        self,
        function: Callable[[*Ts], T],
        *arguments: *Ts,
        timeout_s: float,
        deadline: float = math.inf,
    ) -> T:
        """Call `function` on the GPU's thread, and note since when it has not answered.

        Raises:
            TimeoutError: It does not return in this time.
        """
        started = self._clock.monotonic()
        limit = asyncio.get_running_loop().time() + timeout_s
        try:
            return await self.worker.run(function, *arguments, deadline=min(deadline, limit))
        except TimeoutError:
            if self._claim_unanswered_since is None:
                waited = timedelta(seconds=self._clock.monotonic() - started)
                self._claim_unanswered_since = _Moment(started, self._clock.now() - waited)
                self.wake()  # the query behind the call says when the GPU answers again
            raise

    def verify(self, device: Device) -> None:
        """Return only if the device exists and its GPU responds. Called on the GPU's thread.

        Raises:
            NvmlError: It does not respond as it should.
            ValueError: Another GPU is in its place.
            DeviceChangedError: It is in MIG mode (`InMigModeError`), or the MIG device is not there
                any more.
        """
        nvml, handle = self._session.nvml, self.handle
        listed = self._mig_devices
        if handle is None:  # the first query of a new session has not ended
            found = self._discover()
            if found is not None:
                handle, listed = found.handle, found.mig_devices
        if handle is None or handle.uuid != _gpu_uuid(device):
            raise ValueError("another GPU is in its place")
        if isinstance(device, MigDevice):
            mig_discovery.verify_device(nvml, handle, device, listed)
            return
        nvml.verify_alive(handle)
        if nvml.is_mig_enabled(handle):  # a mode that waits for a reset does not count
            raise InMigModeError("is in MIG mode and cannot be handed out whole")

    def volatile_settings(self) -> Sequence[str]:
        """Settings that the GPU loses when its last client leaves. Called on the GPU's thread.

        Without persistence mode the driver stops the GPU then, and the next client finds it as it
        is after a boot.

        Raises:
            NvmlError: The GPU does not answer.
        """
        nvml, handle = self._session.nvml, self.handle
        if handle is None or nvml.is_persistent(handle) is not False:
            return ()
        found = []
        if mode := nvml.compute_mode(handle):
            found.append(f"compute mode {mode}")
        limits = nvml.power_limits_mw(handle)
        if limits is not None and limits.current != limits.default:
            found.append(f"power limit {limits.current / 1000:g} W")
        return found

    def is_persistent(self) -> bool:
        """Whether the GPU is in persistence mode. Called on the GPU's thread.

        Raises:
            NvmlError: The GPU does not answer.
        """
        handle = self.handle
        return handle is not None and self._session.nvml.is_persistent(handle) is True

    def field_values(self) -> Mapping[Field, int]:
        """As `nvml_fields.read`. Called on the GPU's thread.

        Raises:
            NvmlError: The GPU does not answer, or has not been described yet.
        """
        if self.handle is None:
            raise NvmlError(ReturnCode.UNINITIALIZED, "field values", "", "not described yet")
        return nvml_fields.read(self._session.nvml, self.handle)

    def fabric_info(self) -> FabricInfo | None:
        """As `Nvml.fabric_info`. Called on the GPU's thread.

        Raises:
            NvmlError: The GPU does not answer, or has not been described yet.
        """
        if self.handle is None:
            raise NvmlError(ReturnCode.UNINITIALIZED, "fabric", "", "not described yet")
        return self._session.nvml.fabric_info(self.handle)

    def has_lost(self, place: tuple[int, int], uuid: MigUUID) -> bool:
        """Whether a MIG device that was made for a claim was not there at the last look.

        It is not said of a claim that was not known at that look. Ask the GPU itself whether it is
        so: the claim may just have been prepared.

        Args:
            place: As in `MadePlaces`.
            uuid: What the device was called when it was made.
        """
        return place in self._made and (*place, uuid) not in self._present

    async def run(self, notify: Callable[[], None]) -> None:
        """Query the GPU again and again. Returns only if the GPU is not for compute.

        Args:
            notify: Called when the result changes.
        """
        self._query_started = self._now()
        pci = _pci_address(self._session, self._index)
        if pci is not None and self.gpu is None:
            self._number = await self.worker.run(self._expected_number, pci)
        while self.is_compute:
            before = self._findings
            self._query_started = self._now()
            result = await self.worker.run(self._query)
            was_overdue = self.is_overdue
            self._query_started = self._claim_unanswered_since = None
            self._apply(result)
            if was_overdue or before != self._findings:
                notify()
            await timeouts.wait_for_event(self._woken, _INTERVAL_S)
            self._woken.clear()

    @property
    def is_overdue(self) -> bool:
        """Whether a query or a claim has waited longer than for any GPU that works."""
        since = self._waiting_since
        return since is not None and self._clock.monotonic() - since.monotonic >= UNRESPONSIVE_S

    @property
    def _findings(self) -> tuple[object, ...]:
        """What others are notified of when it changes."""
        return self.gpu, self.handle, self._errors.text, self.has_answered

    @property
    def _waiting_since(self) -> _Moment | None:
        """Since when the GPU has not answered; None if nothing waits for it."""
        waits = (self._query_started, self._claim_unanswered_since)
        return min((each for each in waits if each is not None), default=None)

    def _now(self) -> _Moment:
        return _Moment(self._clock.monotonic(), self._clock.now())

    def _query(self) -> _QueryResult:
        """Query the GPU, on its thread.

        Returns errors, because the caller may have gone meanwhile.
        """
        nvml = self._session.nvml
        try:
            if self.handle is not None and self.gpu is not None:
                nvml.verify_alive(self.handle)
                if not self.partitions_problem and self._has_same_mode(self.handle, self.gpu):
                    return _QueryResult()
            # Also after a switch of the MIG mode, which may change the GPU's minor number.
            found = self._discover()
        except (NvmlError, ValueError) as error:
            return _QueryResult(error=error)
        # Read here: what is made or destroyed for claims changes on this thread only, while the
        # claim's record says so.
        made = frozenset() if found is None else self._made_for_claims(found.gpu.uuid)
        return _QueryResult(found, made=made)

    def _expected_number(self, pci: PciAddress) -> int | None:
        """The number in the GPU's name before it is described; None if it is not known."""
        facts = installation.gpu_facts(self._host, pci)
        if facts.minor is None or facts.uuid is None:
            return facts.minor
        return self._numbers.number(facts.uuid, facts.minor)

    def _discover(self) -> DiscoveredGpu | None:
        """Describe the GPU, on its thread."""
        session = self._session
        return discovery.discover_gpu(
            session.nvml,
            self._index,
            self._host,
            session.versions,
            self._numbers,
            self._finds_partitions,
            self.gpu,
            self.handle,
        )

    def _has_same_mode(self, handle: DeviceHandle, gpu: Gpu) -> bool:
        """Whether the GPU is in the same mode with the same instances. On the GPU's thread."""
        nvml = self._session.nvml
        if nvml.is_mig_enabled(handle) != self._mode:
            return False
        if self._made_for_claims(gpu.uuid) != self._made:
            return False
        if not self._mode:
            return True
        if mig_discovery.list_instances(nvml, gpu, handle) != self._instances:
            return False
        listed, known = nvml_mig.list_devices(nvml, handle), self._mig_devices
        if dict(listed) != dict(known):
            return False
        self._mig_devices = listed  # the handles of devices that were made again are others
        return True

    def _apply(self, result: _QueryResult) -> None:
        if self.answered_at is None:
            self.answered_at = self._clock.monotonic()
        self._errors.note(result.error, self._clock.now(), self._clock.monotonic())
        if isinstance(result.error, NvmlError) and result.error.is_driver_error:
            self._session.is_lost = True
        if result.found is not None:
            found, self.handle, self._mig_devices, self._instances, problem = result.found
            self._note_partitions_problem(found, problem)
            self._mode, self._made = found.is_mig_enabled, result.made
            self._present = frozenset(
                (each.profile.id, each.placement.start, each.uuid) for each in found.mig_devices
            )
            self.gpu = mig_discovery.without_made(found, result.made)
        elif self.handle is None and result.error is None:
            self.is_compute, self.gpu = False, None

    def _note_partitions_problem(self, gpu: Gpu, problem: str) -> None:
        if problem and problem != self.partitions_problem:
            LOG.warning(
                "No MIG devices can be made on a GPU now; it is looked at again",
                gpu=gpu.name,
                uuid=gpu.uuid,
                error=problem,
            )
        self.partitions_problem = problem


def _gpu_uuid(device: Device) -> GpuUUID:
    return device.parent_uuid if isinstance(device, MigDevice) else device.uuid


def create_probes(
    session: NvmlSession,
    host: Host,
    clock: Clock,
    previous: Mapping[PciAddress, Gpu],
    worker: Callable[[int], Worker],
    made_for_claims: MadeForClaims = nothing_made,
    finds_partitions: bool = False,
    numbers: GpuNumbers = MINORS_ONLY,
) -> tuple[GpuProbe, ...]:
    """Create the probes of a session's GPUs. None of them has been queried yet.

    Args:
        session: The open session.
        host: Where procfs and sysfs are.
        clock: Says since when a GPU does not work.
        previous: The GPUs of the former session by PCI address, if the driver is the same.
        worker: Returns an idle thread for the GPU at an index.
        made_for_claims: Says which MIG devices are not the administrator's.
        finds_partitions: Whether MIG devices can be made for claims (`DynamicMIG`).
        numbers: The numbers in the names of GPUs.
    """
    return tuple(
        GpuProbe(
            session,
            index,
            host,
            clock,
            worker(index),
            previous.get(pci) if pci else None,
            made_for_claims,
            finds_partitions,
            numbers,
        )
        for index in range(session.count)
        for pci in (_pci_address(session, index),)
    )


def _pci_address(session: NvmlSession, index: int) -> PciAddress | None:
    """The GPU's PCI address according to files; None if they do not list the same GPUs as NVML."""
    addresses = session.pci_addresses
    return None if addresses is None else addresses[index]


def _rfc3339(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
