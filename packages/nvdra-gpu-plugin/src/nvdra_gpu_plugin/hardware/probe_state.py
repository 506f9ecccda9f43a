# SPDX-License-Identifier: Apache-2.0
"""What is known of a GPU, from its answers and from its silence.

No clock and no NVML here: moments and answers are arguments, and `gpu_probe` asks for them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, auto
from types import MappingProxyType
from typing import Final, NamedTuple

from nvdra_api.ids import DeviceName, MigUUID
from nvdra_runtime.node.nvml import DeviceHandle, NvmlError, ReturnCode

from nvdra_gpu_plugin.devices import device_names
from nvdra_gpu_plugin.devices.gpu_loss import GpuLoss
from nvdra_gpu_plugin.devices.inventory import Fault, Gpu, MadePlaces
from nvdra_gpu_plugin.hardware import mig_discovery
from nvdra_gpu_plugin.hardware.discovery import DiscoveredGpu

UNRESPONSIVE_S: Final = 10.0
"""A GPU that does not respond for so long is not published until it does. NVML responds within
milliseconds, under load within a few seconds. The first client of a GPU without persistence mode
waits 1 to 3 s.

Source: docs/reference/gpu-devices.md, "Loading and initialisation".
"""

LASTING_S: Final = 30.0
"""A GPU that has answered with errors for so long in one session counts as lost. A driver that is
busy, or that is being replaced, fails calls for seconds. The limit is shorter than the minute after
which NVML is opened again for a GPU that does not work."""

LOSSES: Final[Mapping[int, GpuLoss]] = MappingProxyType(
    {
        ReturnCode.GPU_IS_LOST: GpuLoss.OFF_THE_BUS,
        ReturnCode.RESET_REQUIRED: GpuLoss.RESET_REQUIRED,
    }
)
"""What return codes say at once."""

_REMEDY: Final = (
    "look for Xid messages in the node's kernel log; reset the GPU, or reboot the node; it is "
    "offered again once it answers"
)


class Moment(NamedTuple):
    """A moment on the monotonic clock and on the wall clock."""

    monotonic: float
    time: datetime


@dataclass(frozen=True, slots=True)
class GpuErrors:
    """The errors of one GPU.

    Attributes:
        last: The last answer, if it was an error.
        since: Since when its text has been the same; None before the first error.
        began: When the first of the errors in a row came, in monotonic seconds.
    """

    last: NvmlError | ValueError | None = None
    since: datetime | None = None
    began: float = 0.0

    @property
    def text(self) -> str:
        """The last answer, if it was an error; otherwise empty."""
        return "" if self.last is None else str(self.last)

    @property
    def is_loss_certain(self) -> bool:
        """Whether the last answer says by itself that the GPU is lost."""
        return isinstance(self.last, NvmlError) and self.last.code in LOSSES

    def after(self, error: NvmlError | ValueError | None, now: Moment) -> "GpuErrors":
        """The errors after another answer; None is one without an error."""
        if error is None:
            return GpuErrors()
        return GpuErrors(
            error,
            self.since if self.text == str(error) else now.time,
            now.monotonic if self.last is None else self.began,
        )

    def loss(self, monotonic: float) -> GpuLoss | None:
        """Why the GPU counts as lost; None if it does not, or not yet."""
        if not isinstance(self.last, NvmlError) or self.last.is_driver_error:
            return None
        if self.is_loss_certain:
            return LOSSES[self.last.code]
        return GpuLoss.NVML_ERRORS if monotonic - self.began >= LASTING_S else None


class Status(Enum):
    """Whether a GPU can be used."""

    AWAITED = auto()
    """It has not answered in this session yet, and may still be starting."""
    WORKING = auto()
    """Its last answer was no error."""
    FAILING = auto()
    """Its last answer was an error."""
    OVERDUE = auto()
    """A query or a claim has waited longer than for any GPU that works."""


class Answer(NamedTuple):
    """What a GPU is, or an error; neither if it only drives a screen.

    Attributes:
        found: The description. An earlier one is repeated while the GPU is the same.
        made: Where on it MIG devices were made for claims.
        error: What NVML answers instead.
    """

    found: DiscoveredGpu | None = None
    made: MadePlaces = frozenset()
    error: NvmlError | ValueError | None = None


@dataclass(frozen=True, slots=True)
class ProbeState:
    """What is known of a GPU in one NVML session.

    Attributes:
        index: NVML's index of the GPU.
        gpu: What the GPU is, without what claims have had made. Until it is described, what the
            former session found in its place.
        described: As what it has described itself, with the session's handles; None until then.
        made: Where MIG devices were made for claims when it described itself.
        number: The number in its name before it is described; None if it is not known.
        answered_at: When the first query ended, with or without an error, in monotonic seconds;
            None if it has not.
        is_compute: False if the GPU only drives a screen; True until this is known.
        errors: The errors that it answers with.
        waiting_since: When the query in progress began, or before it a call that a claim has waited
            for in vain; None if nothing waits.
    """

    index: int
    gpu: Gpu | None = None
    described: DiscoveredGpu | None = None
    made: MadePlaces = frozenset()
    number: int | None = None
    answered_at: float | None = None
    is_compute: bool = True
    errors: GpuErrors = field(default_factory=GpuErrors)
    waiting_since: Moment | None = None

    @property
    def name(self) -> DeviceName | None:
        """The device name; None until it is known."""
        if self.gpu is not None:
            return self.gpu.name
        return None if self.number is None else device_names.gpu_name(self.number)

    @property
    def handle(self) -> DeviceHandle | None:
        """The session's handle; None until the GPU is described."""
        return None if self.described is None else self.described.handle

    @property
    def partitions_problem(self) -> str:
        """Why nothing can be made on the GPU until it is asked again; empty if nothing is wrong."""
        return "" if self.described is None else self.described.partitions_problem

    @property
    def findings(self) -> tuple[object, ...]:
        """What others are notified of when it changes."""
        return self.gpu, self.handle, self.errors.text, self.answered_at is not None

    def status(self, now: float) -> Status:
        """Whether the GPU can be used, at a time in monotonic seconds."""
        since = self.waiting_since
        if since is not None and now - since.monotonic >= UNRESPONSIVE_S:
            return Status.OVERDUE
        if self.answered_at is None:
            return Status.AWAITED
        return Status.WORKING if self.errors.last is None else Status.FAILING

    def fault(self, now: Moment) -> Fault | None:
        """Why the GPU cannot be used; None if it can, or if it has not answered yet."""
        status = self.status(now.monotonic)
        if status is Status.OVERDUE:
            return Fault(self._device, self.silence())
        if status is not Status.FAILING or self.errors.since is None:
            return None
        since, error = _rfc3339(self.errors.since), self.errors.text
        text = f"{self._description} does not work since {since}: {error}; {_REMEDY}"
        return Fault(self._device, text, is_lost=self.errors.is_loss_certain)

    def silence(self) -> str:
        """Since when the GPU has not answered, and what to do if it lasts."""
        if self.waiting_since is None:  # it answers again, or with errors
            return f"{self._description} did not answer NVML in time; {_REMEDY}"
        since = _rfc3339(self.waiting_since.time)
        return f"{self._description} has not answered NVML since {since}; {_REMEDY}"

    def has_lost(self, place: tuple[int, int], uuid: MigUUID) -> bool:
        """Whether a MIG device that was made at this place was not there at the last look.

        It is not said of one whose claim was not known at that look.
        """
        if self.described is None or place not in self.made:
            return False
        present = self.described.gpu.mig_devices
        return not any(mig.uuid == uuid and mig_discovery.place(mig) == place for mig in present)

    @property
    def _device(self) -> str:
        return self.name or f"the GPU at index {self.index}"

    @property
    def _description(self) -> str:
        """The device with its UUID, if it is known."""
        return self._device if self.gpu is None else f"{self._device} ({self.gpu.uuid})"


def asked(state: ProbeState, began: Moment) -> ProbeState:
    """The state while a query or a claim waits, or has waited, for a call that began then."""
    return replace(state, waiting_since=min(state.waiting_since or began, began))


def answered(state: ProbeState, answer: Answer, now: Moment) -> ProbeState:
    """The state after a query has ended."""
    state = replace(
        state,
        answered_at=now.monotonic if state.answered_at is None else state.answered_at,
        errors=state.errors.after(answer.error, now),
        waiting_since=None,
    )
    if answer.found is not None:
        gpu = mig_discovery.without_made(answer.found.gpu, answer.made)
        return replace(state, gpu=gpu, described=answer.found, made=answer.made)
    return state if answer.error else replace(state, gpu=None, is_compute=False)


def _rfc3339(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
