# SPDX-License-Identifier: Apache-2.0
"""Makes and destroys MIG instances of a GPU, and switches its MIG mode.

Every function is one step. What follows if a step fails is the caller's business. All of them
block: they run on the thread of the GPU. Source: docs/reference/gpu-prepare.md, "Dynamic MIG".
"""

import contextlib
import ctypes
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from nvdra_api.ids import MigUUID

from nvdra_runtime.node import nvml_mig
from nvdra_runtime.node.nvml import DeviceHandle, Nvml, NvmlError, ReturnCode

_MOST_INSTANCES: Final = 64
"""More instances than any GPU has of one profile: NVML fills a buffer without knowing its size."""

_COMPUTE_PROFILE_COUNT: Final = 9

_PROCESS_LISTS: Final = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)

_SHARED_ENGINES: Final = 0
"""`NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED`, the only one that there is."""


class GpuInstance(NamedTuple):
    """A GPU instance that exists.

    Attributes:
        id: Ids are used again for other instances.
        profile_id: Id of its profile.
        start: First memory slice.
        size: How many memory slices it has.
        pointer: NVML's handle.
    """

    id: int
    profile_id: int
    start: int
    size: int
    pointer: Any


class ComputeInstance(NamedTuple):
    """A compute instance that exists, and the MIG device that it is.

    Attributes:
        id: Its id in the GPU instance.
        uuid: Of the MIG device.
        pointer: NVML's handle.
    """

    id: int
    uuid: MigUUID
    pointer: Any


class _Placement(ctypes.Structure):
    """`nvmlGpuInstancePlacement_t`."""

    _fields_ = (("start", ctypes.c_uint), ("size", ctypes.c_uint))


def set_mig_mode(nvml: Nvml, gpu: DeviceHandle, *, enabled: bool) -> int:
    """Switch the MIG mode.

    Returns:
        The activation status: a return code of NVML's, 0 if the mode is in force. That the call
        succeeds does not say so.

    Raises:
        NvmlError: The request was not accepted.
    """
    return int(nvml.call("nvmlDeviceSetMigMode", gpu.uuid, gpu.pointer, int(enabled)))


def create_gpu_instance(
    nvml: Nvml, gpu: DeviceHandle, profile_index: int, start: int, size: int
) -> GpuInstance:
    """Create a GPU instance at a placement.

    Args:
        nvml: The session.
        gpu: A GPU in MIG mode.
        profile_index: NVML's index of the profile.
        start: First memory slice.
        size: How many memory slices it gets.

    Raises:
        NvmlError: `INSUFFICIENT_RESOURCES`: another instance is in the way. If the last call has
            failed, the instance exists.
    """
    info = _profile_info(nvml, gpu, profile_index)
    placement = _Placement(start, size)
    pointer = nvml.call(
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        gpu.uuid,
        gpu.pointer,
        info.id,
        ctypes.byref(placement),
    )
    return _gpu_instance(nvml, gpu, pointer)


def find_gpu_instance(
    nvml: Nvml, gpu: DeviceHandle, profile_index: int, start: int, size: int
) -> GpuInstance | None:
    """The GPU instance of this profile at this placement; None if there is none.

    Raises:
        NvmlError: The GPU does not answer.
    """
    for instance in gpu_instances(nvml, gpu, profile_index):
        if (instance.start, instance.size) == (start, size):
            return instance
    return None


def gpu_instances(nvml: Nvml, gpu: DeviceHandle, profile_index: int) -> Sequence[GpuInstance]:
    """The GPU instances of a profile; none if the GPU is not in MIG mode or lacks the profile.

    Raises:
        NvmlError: The GPU does not answer.
    """
    try:
        info = _profile_info(nvml, gpu, profile_index)
    except NvmlError as error:
        if error.is_unsupported:
            return ()
        raise
    return gpu_instances_of(nvml, gpu, int(info.id))


def gpu_instances_of(nvml: Nvml, gpu: DeviceHandle, profile_id: int) -> Sequence[GpuInstance]:
    """As `gpu_instances`, of a profile of the GPU whose id is known: one call less.

    One that is destroyed meanwhile is not among them.

    Raises:
        NvmlError: The GPU does not answer, or the caller is not privileged.
    """
    found = (ctypes.c_void_p * _MOST_INSTANCES)()
    count = ctypes.c_uint(0)
    function = "nvmlDeviceGetGpuInstances"
    try:
        nvml.call(function, gpu.uuid, gpu.pointer, profile_id, found, ctypes.byref(count))
    except NvmlError as error:
        if error.is_unsupported:
            return ()
        raise
    instances = []
    for at in range(count.value):
        try:
            instances.append(_gpu_instance(nvml, gpu, ctypes.c_void_p(found[at])))
        except NvmlError as error:
            if not nvml_mig.is_gone(error):
                raise
    return instances


def gpu_instance_by_id(nvml: Nvml, gpu: DeviceHandle, instance_id: int) -> GpuInstance | None:
    """The GPU instance with this id; None if there is none, or the GPU is not in MIG mode.

    Raises:
        NvmlError: The GPU does not answer.
    """
    try:
        pointer = nvml.call("nvmlDeviceGetGpuInstanceById", gpu.uuid, gpu.pointer, instance_id)
        return _gpu_instance(nvml, gpu, pointer)
    except NvmlError as error:
        if error.is_unsupported or error.code == ReturnCode.NOT_FOUND:
            return None
        raise


def create_compute_instance(
    nvml: Nvml, gpu: DeviceHandle, instance: GpuInstance, slices: int
) -> ComputeInstance:
    """Create the compute instance that covers a GPU instance with so many compute slices.

    Raises:
        NvmlError: It cannot be created. If the last call has failed, it exists.
    """
    index = nvml_mig.COMPUTE_PROFILES[slices]
    info = _compute_profile_info(nvml, gpu, instance, index)
    pointer = nvml.call("nvmlGpuInstanceCreateComputeInstance", gpu.uuid, instance.pointer, info.id)
    return _compute_instance(nvml, gpu, pointer)


def compute_instances(
    nvml: Nvml, gpu: DeviceHandle, instance: GpuInstance
) -> Sequence[ComputeInstance]:
    """All compute instances of a GPU instance.

    Raises:
        NvmlError: The GPU does not answer.
    """
    by_id: dict[int, ComputeInstance] = {}
    for profile_index in range(_COMPUTE_PROFILE_COUNT):
        found = (ctypes.c_void_p * _MOST_INSTANCES)()
        count = ctypes.c_uint(0)
        try:
            info = _compute_profile_info(nvml, gpu, instance, profile_index)
            nvml.call(
                "nvmlGpuInstanceGetComputeInstances",
                gpu.uuid,
                instance.pointer,
                info.id,
                found,
                ctypes.byref(count),
            )
        except NvmlError as error:
            if error.is_unsupported or error.code == ReturnCode.INVALID_ARGUMENT:
                continue
            raise
        for at in range(count.value):
            compute = _compute_instance(nvml, gpu, ctypes.c_void_p(found[at]))
            by_id[compute.id] = compute
    return list(by_id.values())


def compute_instance_by_id(
    nvml: Nvml, gpu: DeviceHandle, instance: GpuInstance, compute_id: int
) -> ComputeInstance | None:
    """The compute instance with this id; None if there is none.

    Raises:
        NvmlError: The GPU does not answer.
    """
    function = "nvmlGpuInstanceGetComputeInstanceById"
    try:
        return _compute_instance(
            nvml, gpu, nvml.call(function, gpu.uuid, instance.pointer, compute_id)
        )
    except NvmlError as error:
        if error.code == ReturnCode.NOT_FOUND:
            return None
        raise


def destroy_compute_instance(nvml: Nvml, gpu: DeviceHandle, compute: ComputeInstance) -> None:
    """Destroy a compute instance.

    Raises:
        NvmlError: `IN_USE`: a program uses it.
    """
    nvml.call("nvmlComputeInstanceDestroy", gpu.uuid, compute.pointer)


def destroy_gpu_instance(nvml: Nvml, gpu: DeviceHandle, instance: GpuInstance) -> None:
    """Destroy a GPU instance without compute instances. It may take a second.

    Raises:
        NvmlError: `IN_USE`: a program still uses it, which happens now and then.
    """
    nvml.call("nvmlGpuInstanceDestroy", gpu.uuid, instance.pointer)


def processes_in(nvml: Nvml, gpu: DeviceHandle, instance: GpuInstance) -> Sequence[int]:
    """The PIDs of those that compute or draw in a GPU instance, as NVML numbers them.

    It does not list clients that only monitor, nor, perhaps, those of other PID namespaces. A list
    that NVML does not give, as it lacks the function or the permission, counts as empty: that the
    instance is in use is known, and who uses it only helps people.
    """
    found = set[int]()
    for function in _PROCESS_LISTS:
        with contextlib.suppress(NvmlError):
            processes = nvml.call(function, gpu.uuid, gpu.pointer)
            found.update(
                int(process.pid) for process in processes if process.gpuInstanceId == instance.id
            )
    return sorted(found)


def _profile_info(nvml: Nvml, gpu: DeviceHandle, index: int) -> Any:
    return nvml.call("nvmlDeviceGetGpuInstanceProfileInfo", gpu.uuid, gpu.pointer, index, 1)


def _compute_profile_info(nvml: Nvml, gpu: DeviceHandle, instance: GpuInstance, index: int) -> Any:
    function = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
    return nvml.call(function, gpu.uuid, instance.pointer, index, _SHARED_ENGINES, 1)


def _gpu_instance(nvml: Nvml, gpu: DeviceHandle, pointer: Any) -> GpuInstance:
    info = nvml.call("nvmlGpuInstanceGetInfo", gpu.uuid, pointer)
    return GpuInstance(
        id=int(info.id),
        profile_id=int(info.profileId),
        start=int(info.placement.start),
        size=int(info.placement.size),
        pointer=pointer,
    )


def _compute_instance(nvml: Nvml, gpu: DeviceHandle, pointer: Any) -> ComputeInstance:
    """Its UUID is that of the handle in its description: MIG devices need not be searched."""
    info = nvml.call("nvmlComputeInstanceGetInfo_v2", gpu.uuid, pointer)
    uuid = MigUUID(str(nvml.call("nvmlDeviceGetUUID", gpu.uuid, info.device)))
    return ComputeInstance(int(info.id), uuid, pointer)
