# SPDX-License-Identifier: Apache-2.0
"""Brings the functions of a GPU to vfio and back, by the steps of `bindings`.

It looks at the links, does one step, and looks again, until there is nothing left to do. So a
switch that was interrupted anywhere goes on, or back, from what it finds. The caller has written
down what the functions had before (`FunctionBinding`) when it begins, and has made sure that no
process has the GPU open: an unbind cannot be taken back.

These calls block: they run on a worker's thread, one switch of a GPU at a time.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from nvdra_api.errors import DriverError, Reason, RetryableError
from nvdra_api.ids import PciAddress
from nvdra_runtime.node.host import Host
from nvdra_runtime.process.clock import Clock, SystemClock

from nvdra_gpu_plugin.passthrough import bindings, pci_functions
from nvdra_gpu_plugin.passthrough.bindings import Action, BoardBinding, Goal, Place, Step
from nvdra_gpu_plugin.passthrough.pci_functions import PciBus
from nvdra_gpu_plugin.passthrough.sysfs_writer import BLOCKED, CLEAR, SysfsWriter

LOOK_INTERVAL_S: Final = 0.05
"""How often links are read while an unbind of others is waited for. The kernel tells nobody."""
NODE_TIMEOUT_S: Final = 5.0
"""How long a device node may take after a bind: devtmpfs makes it in a thread of its own."""

_REFUSALS: Final[Mapping[Place, str]] = {
    Place.ELSEWHERE: "another driver than before has it",
    Place.NO_DRIVER: "the vfio driver is not loaded",
    Place.ABSENT: "it is not on the PCI bus",
}

TraceStep = Callable[[Step, PciAddress], AbstractContextManager[object]]
"""What a write to `bind` or `unbind` runs in, with the function whose driver it changes."""


class LastingSwitchError(RetryableError):
    """A write has not returned by the deadline, or has not had its effect: the switch goes on."""


class VfioNodes(NamedTuple):
    """The device nodes by which a virtual machine opens a GPU, as paths of the host.

    Attributes:
        group: `/dev/vfio/<group>`.
        device: `/dev/vfio/devices/vfioN`, for iommufd; None if the kernel has no such nodes.
        has_iommufd: Whether the host has `/dev/iommu`.
    """

    group: Path
    device: Path | None
    has_iommufd: bool


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """A write that has not returned.

    Attributes:
        action: What was written.
        since: When, in monotonic seconds.
        pid: The process that is writing.
    """

    action: Action
    since: float
    pid: int


class Binder:
    """Switches the drivers of GPUs, and knows the writes that have not returned.

    Args:
        host: Where sysfs, procfs and the device nodes are.
        clock: Says how long a write has not returned, and when a deadline has passed.
    """

    def __init__(self, host: Host, clock: Clock | None = None) -> None:
        self._host = host
        self._clock = clock or SystemClock()
        self._is_closed = threading.Event()
        self._lock = threading.Lock()
        self._pending: list[tuple[PendingWrite, SysfsWriter]] = []

    def check_at_rest(self, board: BoardBinding) -> None:
        """Check that no write to the drivers of these functions is under way. Nothing is written.

        Raises:
            RetryableError: `VfioDeviceBusy`: one may last without end.
        """
        goals = bindings.to_former(board)
        bus = self._read(goals)
        action = bindings.next_action(goals, bus, self._pending_functions(), is_cleared=False)
        if action.step is Step.WAIT:
            raise _busy(action, _why_waiting(action, bus))

    def bind(
        self, board: BoardBinding, deadline: float, traced: TraceStep = lambda *_: nullcontext()
    ) -> VfioNodes:
        """Bring a GPU, the first one of `board`, with its companions to vfio.

        Args:
            board: The functions, with what they had before.
            deadline: Monotonic seconds of the clock.
            traced: Traces the writes.

        Returns:
            The GPU's device nodes.

        Raises:
            RetryableError: `VfioBindFailed`: a function did not get there; what has been done stays
                as it is, for `give_back`. `VfioDeviceBusy`: an unbind has not returned.
        """
        self._switch(bindings.to_vfio(board), deadline, traced)
        return self._verified_nodes(board[0].pci, deadline)

    def give_back(
        self, board: BoardBinding, deadline: float, traced: TraceStep = lambda *_: nullcontext()
    ) -> Mapping[PciAddress, str | None]:
        """Give a GPU with its companions the drivers back that they had before.

        A function whose former driver is not loaded is left without one: the module takes it when
        it is loaded. So is one that another driver has meanwhile.

        Returns:
            The drivers that they have now. A function that has left the bus is not in it.

        Raises:
            RetryableError: As `bind`.
        """
        self._switch(bindings.to_former(board), deadline, traced)
        bus = self._read(bindings.to_former(board))
        return {
            function.pci: bus.functions[function.pci].driver
            for function in board
            if function.pci in bus.functions
        }

    def pending(self) -> tuple[PendingWrite, ...]:
        """The writes that have not returned, the oldest first."""
        with self._lock:
            self._pending = [each for each in self._pending if not each[1].has_ended()]
            return tuple(sorted((each for each, _ in self._pending), key=lambda it: it.since))

    def close(self) -> None:
        """Let the switches that wait for others end with an error, at the end of the plugin."""
        self._is_closed.set()

    def _pending_functions(self) -> set[PciAddress]:
        return {each.action.pci for each in self.pending()}

    def _switch(self, goals: Sequence[Goal], deadline: float, traced: TraceStep) -> None:
        """Do one step after the other until nothing is left to do."""
        done: set[Action] = set()
        is_cleared = False
        with SysfsWriter() as writer:
            while True:
                bus = self._read(goals)
                pending = self._pending_functions()
                action = bindings.next_action(goals, bus, pending, is_cleared=is_cleared)
                if action.step is Step.NOTHING:
                    return
                if action.step is Step.REFUSE:
                    raise _refusal(action, bus)
                if action.step is Step.WAIT:
                    self._wait(action, bus, deadline)
                    continue
                if action in done:
                    raise _failure(action, bus, "it had no effect")
                done.add(action)
                is_cleared = is_cleared or action.step is Step.BIND
                is_traced = action.step in (Step.UNBIND, Step.BIND)
                with traced(action.step, action.pci) if is_traced else nullcontext():
                    self._write(writer, action, bus, deadline)

    def _write(self, writer: SysfsWriter, action: Action, bus: PciBus, deadline: float) -> None:
        """Make one write. Its error counts only if the links say that it had no effect."""
        path, text = _file(self._host, action)
        since = self._clock.monotonic()
        number = writer.write(path, text, deadline - since)
        if number == BLOCKED:
            with self._lock:
                self._pending.append((PendingWrite(action, since, writer.pid), writer))
            if action.step is Step.BIND:  # the driver starts the GPU; no process is in the way
                why = f"the write to {path} has not returned"
                raise _failure(action, bus, why, LastingSwitchError)
            raise _busy(action, f"the write to {path} has not returned")
        if number and not self._has_effect(action):
            raise _failure(action, bus, f"writing {text.strip() or 'a newline'!r} to {path}: "
                           f"{os.strerror(number)}")  # fmt: skip

    def _has_effect(self, action: Action) -> bool:
        bus = pci_functions.read_some(self._host, [action.pci])
        function = bus.functions.get(action.pci)
        if function is None:
            return False
        if action.step is Step.SET_OVERRIDE:
            return function.override == action.override
        if action.step is Step.UNBIND:
            return function.driver != action.driver
        return function.driver == action.driver

    def _wait(self, action: Action, bus: PciBus, deadline: float) -> None:
        if self._clock.monotonic() + LOOK_INTERVAL_S > deadline:
            raise _busy(action, _why_waiting(action, bus))
        if self._is_closed.wait(LOOK_INTERVAL_S):
            raise _busy(action, "the plugin ends")

    def _verified_nodes(self, gpu: PciAddress, deadline: float) -> VfioNodes:
        """The nodes of a GPU on vfio, when they are there and the group can be opened."""
        bus = pci_functions.read_some(self._host, [gpu])
        function = bus.functions[gpu]
        failed = Action(Step.BIND, gpu, function.driver)
        if function.group is None:
            raise _failure(failed, bus, "it has no IOMMU group")
        holding = bindings.not_viable(bus, function.group)
        if holding:
            named = ", ".join(f"{mate.pci} ({mate.driver})" for mate in holding)
            raise _failure(failed, bus, f"IOMMU group {function.group} is not viable: {named}")
        directory = self._host.dev / "vfio"
        group = directory / str(function.group)
        end = min(deadline, self._clock.monotonic() + NODE_TIMEOUT_S)
        while not group.is_char_device():
            if self._clock.monotonic() > end or self._is_closed.wait(LOOK_INTERVAL_S):
                raise _failure(failed, bus, f"{group} is not there")
        device = pci_functions.cdev(self._host, function)
        return VfioNodes(group, device, pci_functions.has_iommufd(self._host))

    def _read(self, goals: Sequence[Goal]) -> PciBus:
        return pci_functions.read_some(self._host, [goal.pci for goal in goals])


def _file(host: Host, action: Action) -> tuple[Path, str]:
    """The file of a step, and what is written to it."""
    bus = host.sys / "bus/pci"
    if action.step is Step.SET_OVERRIDE:
        return bus / "devices" / action.pci / "driver_override", action.override or CLEAR
    name = "unbind" if action.step is Step.UNBIND else "bind"
    return bus / "drivers" / (action.driver or "") / name, action.pci


def _refusal(action: Action, bus: PciBus) -> DriverError:
    why = _REFUSALS[action.place]
    function = bus.functions.get(action.pci)
    if function is None and action.pci in bus.unreadable:
        why = f"it cannot be read: {bus.unreadable[action.pci]}"
    elif function is not None and function.driver is not None:
        why = f"{why}: {function.driver}"
    return _failure(action, bus, why)


def _failure(
    action: Action, bus: PciBus, why: str, kind: type[RetryableError] = RetryableError
) -> DriverError:
    function = bus.functions.get(action.pci)
    driver = function.driver if function else None
    return kind(
        Reason.VFIO_BIND_FAILED,
        f"the driver of PCI function {action.pci} was not switched ({action.step.value}): {why}",
        "see the kernel's log on the node, which names this address; the switch is tried again",
        pci=action.pci,
        step=action.step.name.lower(),
        driver=driver or "none",
    )


def _busy(action: Action, why: str) -> DriverError:
    return LastingSwitchError(
        Reason.VFIO_DEVICE_BUSY,
        f"PCI function {action.pci} is still in use: {why}",
        "end the processes that have it open; the switch goes on when they have ended, and cannot "
        "be taken back",
        pci=action.pci,
        step=action.step.name.lower(),
    )


def _why_waiting(action: Action, bus: PciBus) -> str:
    function = bus.functions.get(action.pci)
    if function is None or action.pci in bus.nvidia_gpus:
        return "the NVIDIA driver has not let go of it"
    if function.group in bus.vfio_groups:
        return f"vfio has not let go of IOMMU group {function.group}"
    return "a write to its driver has not returned"
