# SPDX-License-Identifier: Apache-2.0
"""MIG devices as NVML describes them: the compute instances of a GPU in MIG mode.

A GPU instance without a compute instance is no MIG device. All functions block: they run on the
thread of the GPU. Source: docs/reference/gpu-devices.md, "Existing MIG devices".
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from nvdra_api.ids import MigUUID

from nvdra_runtime.node.nvml import DeviceHandle, Nvml, NvmlError, ReturnCode

_MIB: Final = 1 << 20
_PROFILE_LIMIT: Final = 64
"""Profiles are numbered from 0, 18 at present. NVML refuses the first number that there is not."""

_VGPU_GUEST: Final = 2
"""`NVML_GPU_VIRTUALIZATION_MODE_VGPU`."""

COMPUTE_PROFILES: Final[Mapping[int, int]] = {1: 0, 2: 1, 3: 2, 4: 3, 6: 6, 7: 4, 8: 5}
"""The profile of compute instances by their slices, `NVML_COMPUTE_INSTANCE_PROFILE_…`.

Where there are several, it is the lowest one. The others, 7 and 8, exist on few GPUs.
"""

_GONE: Final = (ReturnCode.NOT_FOUND, ReturnCode.INVALID_ARGUMENT)
"""What NVML answers for an instance or a handle of one that was destroyed."""


@dataclass(frozen=True, slots=True)
class MigHandle:
    """NVML's handle of a MIG device. It is valid until the device is destroyed."""

    uuid: MigUUID
    pointer: Any = field(compare=False, repr=False)


class MigAttributes(NamedTuple):
    """What a MIG device has, in compute slices and bytes (`nvmlDeviceAttributes_t`).

    Attributes:
        profile_id: Of its GPU instance. `1g.5gb` and `1g.5gb+me` have the same slices, memory and
            UUID, and `1g.24gb+gfx` the same engines as `1g.24gb`.
        gpu_instance_slices: Of its GPU instance.
        compute_instance_slices: Of its compute instance; fewer if this does not cover the former.
        multiprocessors: Of the compute instance.
        memory_bytes: Of the GPU instance, whose compute instances share it.
    """

    profile_id: int
    gpu_instance_slices: int
    compute_instance_slices: int
    multiprocessors: int
    memory_bytes: int


class MigInstance(NamedTuple):
    """Where a MIG device is.

    Attributes:
        gpu_instance: Id of the GPU instance.
        compute_instance: Id of the compute instance in it.
        profile_id: Id of the GPU instance's profile.
        start: First memory slice of the GPU instance.
        size: How many memory slices it has.
        compute_start: First compute slice of the compute instance within its GPU instance.
    """

    gpu_instance: int
    compute_instance: int
    profile_id: int
    start: int
    size: int
    compute_start: int


@dataclass(frozen=True, slots=True)
class MigProfileInfo:
    """A profile of GPU instances (`nvmlGpuInstanceProfileInfo_t`).

    Attributes:
        index: The number that NVML is asked for, `NVML_GPU_INSTANCE_PROFILE_…`.
        name: Such as `3g.40gb`; empty if the driver is older than branch 520.
        slices: Compute slices.
    """

    index: int
    id: int
    name: str
    slices: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int
    memory_bytes: int


class PossiblePlacement(NamedTuple):
    """Memory slices that a GPU instance of a profile can be made of.

    Attributes:
        start: The first one.
        size: How many.
    """

    start: int
    size: int


class _PlacementStruct(ctypes.Structure):
    """`nvmlGpuInstancePlacement_t`."""

    _fields_ = (("start", ctypes.c_uint), ("size", ctypes.c_uint))


def is_gone(error: NvmlError) -> bool:
    """Whether the error says that a MIG device does not exist any more."""
    return error.code in _GONE


def list_devices(nvml: Nvml, gpu: DeviceHandle) -> Mapping[MigHandle, MigAttributes]:
    """The MIG devices of a GPU in MIG mode, in NVML's order.

    Raises:
        NvmlError: The GPU does not answer.
    """
    count = int(nvml.call("nvmlDeviceGetMaxMigDeviceCount", gpu.uuid, gpu.pointer))
    found: dict[MigHandle, MigAttributes] = {}
    for index in range(count):
        try:
            pointer = nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", gpu.uuid, gpu.pointer, index)
            uuid = MigUUID(str(nvml.call("nvmlDeviceGetUUID", gpu.uuid, pointer)))
            attributes = nvml.call("nvmlDeviceGetAttributes_v2", uuid, pointer)
            _, info = _gpu_instance(nvml, gpu, MigHandle(uuid, pointer))
        except NvmlError as error:
            if is_gone(error):  # indices have holes, and a device may be destroyed meanwhile
                continue
            raise
        found[MigHandle(uuid, pointer)] = MigAttributes(
            profile_id=int(info.profileId),
            gpu_instance_slices=int(attributes.gpuInstanceSliceCount),
            compute_instance_slices=int(attributes.computeInstanceSliceCount),
            multiprocessors=int(attributes.multiprocessorCount),
            memory_bytes=int(attributes.memorySizeMB) * _MIB,
        )
    return found


def locate(nvml: Nvml, gpu: DeviceHandle, device: MigHandle) -> MigInstance | None:
    """Where a MIG device of the GPU is; None if it does not exist any more.

    Raises:
        NvmlError: The GPU does not answer.
    """
    call = nvml.call
    try:
        instance, info = _gpu_instance(nvml, gpu, device)
        compute_id = int(call("nvmlDeviceGetComputeInstanceId", device.uuid, device.pointer))
        compute = call("nvmlGpuInstanceGetComputeInstanceById", device.uuid, instance, compute_id)
        compute_info = call("nvmlComputeInstanceGetInfo_v2", device.uuid, compute)
    except NvmlError as error:
        if is_gone(error):
            return None
        raise
    return MigInstance(
        gpu_instance=int(info.id),
        compute_instance=compute_id,
        profile_id=int(info.profileId),
        start=int(info.placement.start),
        size=int(info.placement.size),
        compute_start=int(compute_info.placement.start),
    )


def profiles(nvml: Nvml, gpu: DeviceHandle) -> Mapping[int, MigProfileInfo]:
    """The profiles of GPU instances that the GPU has, by id.

    Raises:
        NvmlError: The GPU does not answer.
    """
    found: dict[int, MigProfileInfo] = {}
    for index in range(_PROFILE_LIMIT):
        try:
            info = _profile_info(nvml, gpu, index)
        except NvmlError as error:
            if error.code == ReturnCode.INVALID_ARGUMENT:
                break
            if error.is_unsupported:
                continue
            raise
        found[int(info.id)] = MigProfileInfo(
            index=index,
            id=int(info.id),
            name=_text(getattr(info, "name", "")).removeprefix("MIG "),
            slices=int(info.sliceCount),
            multiprocessors=int(info.multiprocessorCount),
            copy_engines=int(info.copyEngineCount),
            decoders=int(info.decoderCount),
            encoders=int(info.encoderCount),
            jpeg_engines=int(info.jpegCount),
            ofa_engines=int(info.ofaCount),
            memory_bytes=int(info.memorySizeMB) * _MIB,
        )
    return found


def has_mig(nvml: Nvml, gpu: DeviceHandle) -> bool:
    """Whether the GPU has a MIG mode, on or off, that this node decides on.

    A GPU of a virtual machine that is itself a part of one (vGPU) has none.

    Raises:
        NvmlError: The GPU does not answer.
    """
    try:
        nvml.call("nvmlDeviceGetMigMode", gpu.uuid, gpu.pointer)
        mode = int(nvml.call("nvmlDeviceGetVirtualizationMode", gpu.uuid, gpu.pointer))
    except NvmlError as error:
        if error.is_unsupported:
            return False
        raise
    return mode != _VGPU_GUEST


def possible_placements(
    nvml: Nvml, gpu: DeviceHandle, profile_id: int
) -> Sequence[PossiblePlacement]:
    """Where GPU instances of a profile can be made, in NVML's order, whatever exists at present.

    Raises:
        NvmlError: The GPU does not answer, or the caller is not privileged.
    """
    function = "nvmlDeviceGetGpuInstancePossiblePlacements"
    count = ctypes.c_uint(0)
    nvml.call(function, gpu.uuid, gpu.pointer, profile_id, None, ctypes.byref(count))
    found = (_PlacementStruct * count.value)()
    nvml.call(function, gpu.uuid, gpu.pointer, profile_id, found, ctypes.byref(count))
    return tuple(PossiblePlacement(each.start, each.size) for each in found[: count.value])


def verify_alive(nvml: Nvml, device: MigHandle) -> None:
    """Check that the MIG device exists and its GPU answers, with one call that is not cached.

    Raises:
        NvmlError: It does not; `is_gone` says which.
    """
    try:
        nvml.call("nvmlDeviceGetMemoryInfo", device.uuid, device.pointer)
    except NvmlError as error:
        if not error.is_unsupported:
            raise


def _gpu_instance(nvml: Nvml, gpu: DeviceHandle, device: MigHandle) -> tuple[Any, Any]:
    """The handle of a MIG device's GPU instance, and `nvmlGpuInstanceInfo_t` of it."""
    number = int(nvml.call("nvmlDeviceGetGpuInstanceId", device.uuid, device.pointer))
    instance = nvml.call("nvmlDeviceGetGpuInstanceById", device.uuid, gpu.pointer, number)
    return instance, nvml.call("nvmlGpuInstanceGetInfo", device.uuid, instance)


def _profile_info(nvml: Nvml, gpu: DeviceHandle, index: int) -> Any:
    """The second version of the structure, which has a name, or the first one."""
    function = "nvmlDeviceGetGpuInstanceProfileInfo"
    try:
        return nvml.call(function, gpu.uuid, gpu.pointer, index, 2)
    except NvmlError as error:
        if error.code != ReturnCode.FUNCTION_NOT_FOUND:
            raise
    return nvml.call(function, gpu.uuid, gpu.pointer, index, 1)


def _text(name: bytes | str) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name
