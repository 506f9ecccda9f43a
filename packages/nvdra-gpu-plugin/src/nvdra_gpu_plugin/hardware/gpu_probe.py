# SPDX-License-Identifier: Apache-2.0
"""Queries one GPU again and again, on a thread of its own.

A probe first asks what the GPU is, and then whether it still responds. So a GPU that hangs, falls
off the bus or comes back is noticed before a claim needs it. `DeviceMonitor` decides what follows.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar, TypeVarTuple

from nvdra_api.ids import PciAddress
from nvdra_runtime.node import nvml_mig
from nvdra_runtime.node.nvml import DeviceHandle, Nvml, NvmlError, ReturnCode
from nvdra_runtime.process import timeouts
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.devices.gpu_loss import GpuLoss
from nvdra_gpu_plugin.devices.inventory import Device, Fault, Gpu, MadePlaces, MigDevice
from nvdra_gpu_plugin.driver.nvml_sessions import NvmlSession
from nvdra_gpu_plugin.hardware import mig_discovery, probe_state
from nvdra_gpu_plugin.hardware.discovery import DiscoveredGpu, Discovery
from nvdra_gpu_plugin.hardware.mig_discovery import InMigModeError
from nvdra_gpu_plugin.hardware.probe_state import UNRESPONSIVE_S, Answer, Moment, ProbeState, Status

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LOG = logs.logger(__name__)

_INTERVAL_S: Final = 10.0
"""Between two queries. One takes some 20 µs, and each claim queries the GPU by itself, too."""

CHANGE_S: Final = 20.0
"""How long a claim waits for a change of a GPU. Making a MIG device takes less than a second,
destroying one about a second, switching its mode two, and nvidia-smi seconds on a busy node. A pod
whose claim changes a GPU that hangs is gone within half a minute."""


class GpuProbe:
    """The probe of one GPU in one NVML session.

    Attributes:
        worker: The GPU's thread.
        state: What is known of the GPU. It is replaced as a whole, on the event loop.
    """

    def __init__(
        self,
        session: NvmlSession,
        index: int,
        pci: PciAddress | None,
        previous: Gpu | None,
        worker: Worker,
        discovery: Discovery,
        clock: Clock,
    ) -> None:
        """Create it without a query.

        `previous` is what the former session found at `pci`, if it had the same driver. Either is
        None if it is not known.
        """
        self.worker = worker
        self.state = ProbeState(index, previous)
        self._session = session
        self._pci = pci
        self._discovery = discovery
        self._clock = clock
        self._woken = asyncio.Event()

    @property
    def gpu(self) -> Gpu | None:
        """As in `ProbeState`."""
        return self.state.gpu

    @property
    def status(self) -> Status:
        """Whether the GPU can be used."""
        return self.state.status(self._clock.monotonic())

    @property
    def fault(self) -> Fault | None:
        """As `ProbeState.fault`."""
        return self.state.fault(self._now())

    @property
    def loss(self) -> GpuLoss | None:
        """Why the GPU counts as lost, by its own answers; None if it does not."""
        is_failing = self.status is Status.FAILING
        return self.state.errors.loss(self._clock.monotonic()) if is_failing else None

    @property
    def silence(self) -> str:
        """As `ProbeState.silence`."""
        return self.state.silence()

    def wake(self) -> None:
        """Query the GPU at once."""
        self._woken.set()

    async def ask(
        self,
        function: Callable[[*Ts], T],
        *arguments: *Ts,
        deadline: float = math.inf,
        timeout_s: float = UNRESPONSIVE_S,
    ) -> T:
        """Call `function` on the GPU's thread, for a claim, and note if it is not answered.

        Raises:
            TimeoutError: The GPU does not answer by the deadline, or in this time: by default, as
                long as any GPU that works needs. If it is overdue already, this is raised at once.
        """
        if self.state.waiting_since is not None and self.status is Status.OVERDUE:
            raise TimeoutError
        began = self._now()
        limit = asyncio.get_running_loop().time() + timeout_s
        try:
            return await self.worker.run(function, *arguments, deadline=min(deadline, limit))
        except TimeoutError:
            self.state = probe_state.asked(self.state, began)
            self.wake()  # the query behind the call says when the GPU answers again
            raise

    async def change(self, function: Callable[[*Ts, Nvml, DeviceHandle], T], *arguments: *Ts) -> T:
        """Call `function` on the GPU's thread, with the session and the GPU's handle.

        A call that has begun runs to its end, whether or not it is waited for.

        Raises:
            TimeoutError: It does not return within `CHANGE_S`. The GPU counts as overdue until it
                answers a query, which waits behind the call. If it is overdue already, or has not
                been described, this is raised at once.
        """
        if self.state.described is None:
            raise TimeoutError
        nvml, handle = self._session.nvml, self.state.described.handle
        return await self.ask(function, *arguments, nvml, handle, timeout_s=CHANGE_S)

    def verify(self, device: Device) -> None:
        """Return only if the device exists and its GPU responds. Called on the GPU's thread.

        Raises:
            NvmlError: It does not respond as it should.
            ValueError: Another GPU is in its place.
            DeviceChangedError: It is in MIG mode (`InMigModeError`), or the MIG device is not there
                any more.
        """
        # The first query of a new session may not have ended.
        nvml, found = self._session.nvml, self.state.described or self._discover()
        uuid = device.parent_uuid if isinstance(device, MigDevice) else device.uuid
        if found is None or found.handle.uuid != uuid:
            raise ValueError("another GPU is in its place")
        if isinstance(device, MigDevice):
            mig_discovery.verify_device(nvml, found.handle, device, found.mig_devices)
            return
        nvml.verify_alive(found.handle)
        if nvml.is_mig_enabled(found.handle):  # a mode that waits for a reset does not count
            raise InMigModeError("is in MIG mode and cannot be handed out whole")

    def read(self, what: str, function: Callable[[Nvml, DeviceHandle], T]) -> T:
        """The result of `function` for this GPU. Called on the GPU's thread.

        Raises:
            NvmlError: The GPU does not answer, or has not been described yet; then it names `what`.
        """
        if self.state.handle is None:
            raise NvmlError(ReturnCode.UNINITIALIZED, what, "", "not described yet")
        return function(self._session.nvml, self.state.handle)

    async def run(self, notify: Callable[[], None]) -> None:
        """Query the GPU again and again. Returns only if the GPU is not for compute.

        Args:
            notify: Called when the result changes.
        """
        self.state = probe_state.asked(self.state, self._now())
        if self._pci is not None and self.gpu is None:
            number = await self.worker.run(self._discovery.expected_number, self._pci)
            self.state = replace(self.state, number=number)
        while self.state.is_compute:
            before = self.state.findings
            self.state = probe_state.asked(self.state, self._now())
            answer = await self.worker.run(self._query)
            was_overdue = self.status is Status.OVERDUE
            self._note(answer)
            if was_overdue or before != self.state.findings:
                notify()
            await timeouts.wait_for_event(self._woken, _INTERVAL_S)
            self._woken.clear()

    def _now(self) -> Moment:
        return Moment(self._clock.monotonic(), self._clock.now())

    def _query(self) -> Answer:
        """Query the GPU, on its thread.

        Returns errors, because the caller may have gone meanwhile.
        """
        state = self.state
        try:
            if state.described is not None:
                self._session.nvml.verify_alive(state.described.handle)
                same = self._same(state.described, state.made)
                if same is not None:
                    return Answer(same, state.made)
            # Also after a switch of the MIG mode, which may change the GPU's minor number.
            found = self._discover()
        except (NvmlError, ValueError) as error:
            return Answer(error=error)
        # Read here: what is made or destroyed for claims changes on this thread only, while the
        # claim's record says so.
        made = frozenset() if found is None else self._discovery.made_on(found.gpu.uuid)
        return Answer(found, made)

    def _discover(self) -> DiscoveredGpu | None:
        """Describe the GPU, on its thread."""
        session, state = self._session, self.state
        return self._discovery.describe(
            session.nvml, state.index, session.versions, state.gpu, state.handle
        )

    def _same(self, described: DiscoveredGpu, made: MadePlaces) -> DiscoveredGpu | None:
        """The description if it still holds, with today's handles. On the GPU's thread."""
        nvml, gpu, handle = self._session.nvml, described.gpu, described.handle
        if described.partitions_problem or nvml.is_mig_enabled(handle) != gpu.is_mig_enabled:
            return None
        if self._discovery.made_on(gpu.uuid) != made:
            return None
        if not gpu.is_mig_enabled:
            return described
        if mig_discovery.list_instances(nvml, gpu, handle) != described.instances:
            return None
        listed = nvml_mig.list_devices(nvml, handle)
        if dict(listed) != dict(described.mig_devices):
            return None
        # The handles of devices that were made again are others.
        return described._replace(mig_devices=listed)

    def _note(self, answer: Answer) -> None:
        """Take note of what the GPU has answered."""
        before = self.state.partitions_problem
        self.state = probe_state.answered(self.state, answer, self._now())
        if isinstance(answer.error, NvmlError) and answer.error.is_driver_error:
            self._session.is_lost = True
        gpu, problem = self.gpu, self.state.partitions_problem
        if gpu is not None and problem and problem != before:
            LOG.warning(
                "No MIG devices can be made on a GPU now; it is looked at again",
                gpu=gpu.name,
                uuid=gpu.uuid,
                error=problem,
            )
