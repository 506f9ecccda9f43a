# SPDX-License-Identifier: Apache-2.0
"""Event sets of NVML: what GPUs report by themselves, such as XIDs.

A wait in NVML cannot be ended from outside, so that callers wait in short slices on a thread of
their own. Source: docs/reference/nvml-simulator.md, "Events".
"""

import ctypes
from enum import IntFlag
from typing import Any, Final, NamedTuple

from nvdra_api.ids import GpuUUID

from nvdra_runtime.node.nvml import DeviceHandle, Nvml, NvmlError, ReturnCode

_NO_INSTANCE: Final = 0xFFFFFFFF
"""In place of the number of a MIG instance: the event concerns the whole GPU."""


class EventType(IntFlag):
    """What a GPU can report (`nvmlEventType…`). NVML knows more types."""

    SINGLE_BIT_ECC_ERROR = 0x1
    DOUBLE_BIT_ECC_ERROR = 0x2
    XID = 0x8
    MIG_CHANGE = 0x100


class Event(NamedTuple):
    """An event of a GPU.

    Attributes:
        gpu: The GPU; None if it is not one of those that are registered.
        type: What kind of event; 0 for one of a type that was not asked for.
        xid: The XID of an event of this type, 999 if the driver does not know it; otherwise 0.
        gpu_instance: The MIG instance that it concerns; None if it concerns the whole GPU.
    """

    gpu: GpuUUID | None
    type: EventType
    xid: int
    gpu_instance: int | None


class EventSet:
    """GPUs whose events are waited for together.

    It has files of the driver open until it is freed, which must happen before the session is
    closed. All methods block. `register` may be called while another thread waits.
    """

    def __init__(self, nvml: Nvml) -> None:
        """Create a set without GPUs.

        Raises:
            NvmlError: It cannot be created.
        """
        self._nvml = nvml
        self._pointer = nvml.call("nvmlEventSetCreate", "")
        self._gpus: dict[int, GpuUUID] = {}

    def register(self, gpu: DeviceHandle, wanted: EventType) -> EventType:
        """Add those of the wanted events that the GPU supports, and return them.

        What has happened before is not reported.

        Raises:
            NvmlError: The GPU does not answer, or cannot be registered.
        """
        call = self._nvml.call
        try:
            supported = call("nvmlDeviceGetSupportedEventTypes", gpu.uuid, gpu.pointer)
        except NvmlError as error:
            if error.is_unsupported:
                return EventType(0)
            raise
        types = wanted & EventType(int(supported) & sum(EventType))
        if types:
            self._gpus[_address(gpu.pointer)] = gpu.uuid
            call("nvmlDeviceRegisterEvents", gpu.uuid, gpu.pointer, int(types), self._pointer)
        return types

    def wait(self, timeout_ms: int) -> Event | None:
        """Wait for an event; None if there is none in this time, or in less.

        Raises:
            NvmlError: It cannot be waited. If a GPU of the set is lost, every wait fails at once.
        """
        try:
            data = self._nvml.call(
                "nvmlEventSetWait_v2", "", self._pointer, timeout_ms, is_observed=False
            )
        except NvmlError as error:
            if error.code == ReturnCode.TIMEOUT:
                return None
            raise
        type_ = EventType(int(data.eventType) & sum(EventType))
        instance = int(data.gpuInstanceId)
        return Event(
            self._gpus.get(_address(data.device)),
            type_,
            int(data.eventData) if type_ is EventType.XID else 0,
            None if instance == _NO_INSTANCE else instance,
        )

    def free(self) -> None:
        """Free the set. No thread may wait in it.

        Raises:
            NvmlError: It cannot be freed.
        """
        self._nvml.call("nvmlEventSetFree", "", self._pointer)


def _address(handle: Any) -> int:
    """The address in a handle. All handles of a GPU have the same one during a session."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
