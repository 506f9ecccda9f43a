# SPDX-License-Identifier: Apache-2.0
"""Reads from NVML which MIG devices a GPU has, and which can be made on it.

Source: docs/reference/gpu-devices.md, "Discovery", "Partitionable devices".

These calls block: they run on the thread of the GPU.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from nvdra_runtime.node import nvml_mig, nvml_mig_changes
from nvdra_runtime.node.nvml import DeviceHandle, Nvml, NvmlError, ReturnCode
from nvdra_runtime.node.nvml_mig import MigAttributes, MigHandle, MigProfileInfo
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.devices import mig_profiles
from nvdra_gpu_plugin.devices.inventory import (
    Gpu,
    GpuInstance,
    MadePlaces,
    MigDevice,
    MigPartition,
)
from nvdra_gpu_plugin.devices.mig_profiles import MigProfile, Placement

LOG = logs.logger(__name__)

Listing = Mapping[MigHandle, MigAttributes]
"""The MIG devices of a GPU, from `nvml_mig.list_devices`."""

Instances = frozenset[GpuInstance]
"""The GPU instances of a GPU, with compute instances or without."""


class Partitions(NamedTuple):
    """What can be made on a GPU.

    Attributes:
        found: In the order of names.
        problem: Why it is not known yet, so that NVML is to be asked again; empty if it is known.
    """

    found: tuple[MigPartition, ...] = ()
    problem: str = ""


class DeviceChangedError(Exception):
    """A device is not any more what it was."""


class InMigModeError(DeviceChangedError):
    """A GPU that is to be handed out whole is in MIG mode."""


def place(existing: MigDevice | GpuInstance) -> tuple[int, int]:
    """Where something is that exists on a GPU, as in `MadePlaces`."""
    return existing.profile.id, existing.placement.start


def without_made(gpu: Gpu, made: MadePlaces) -> Gpu:
    """The GPU as an administrator has left it, without the MIG devices that claims have had made.

    One that is half made is without a compute instance, and is the claim's as well. MIG mode that
    is switched as claims need it does not count either, so that the GPU is the same value before,
    during and after such a claim.
    """
    left = tuple(mig for mig in gpu.mig_devices if place(mig) not in made)
    bare = tuple(instance for instance in gpu.bare_instances if place(instance) not in made)
    is_divided = gpu.is_mig_enabled and not (gpu.can_switch_mode and not (left or bare))
    return replace(gpu, mig_devices=left, bare_instances=bare, is_mig_enabled=is_divided)


def list_instances(nvml: Nvml, gpu: Gpu, handle: DeviceHandle) -> Instances:
    """The GPU instances of a GPU in MIG mode; none are asked for where no partition is offered.

    One call for each profile, and one for each instance. Call it before `nvml_mig.list_devices`: an
    instance whose compute instance is made between the two is not taken for a bare one.

    Raises:
        NvmlError: The GPU does not answer.
    """
    profiles = {partition.profile.id: partition.profile for partition in gpu.partitions}
    return frozenset(
        GpuInstance(each.id, profile, Placement(each.start, each.size))
        for profile in profiles.values()
        for each in nvml_mig_changes.gpu_instances_of(nvml, handle, profile.id)
    )


def with_instances(gpu: Gpu, devices: tuple[MigDevice, ...], instances: Instances) -> Gpu:
    """The GPU with what exists on it: its MIG devices, and GPU instances that have none."""
    divided = {mig.gpu_instance for mig in devices}
    bare = sorted(
        (instance for instance in instances if instance.id not in divided), key=lambda each: each.id
    )
    return replace(gpu, mig_devices=devices, bare_instances=tuple(bare))


def describe_devices(
    nvml: Nvml, gpu: Gpu, handle: DeviceHandle, listed: Listing
) -> tuple[MigDevice, ...]:
    """Describe MIG devices of a GPU, in the order of their names.

    One that is destroyed meanwhile is left out.

    Raises:
        NvmlError: The GPU does not answer.
    """
    if not listed:
        return ()
    profiles = nvml_mig.profiles(nvml, handle)
    found = [
        device
        for mig, attributes in listed.items()
        if (device := _describe(nvml, gpu, handle, mig, attributes, profiles)) is not None
    ]
    return tuple(sorted(found, key=lambda device: device.name))


def describe_partitions(
    nvml: Nvml, gpu: Gpu, handle: DeviceHandle, known: Gpu | None = None
) -> Partitions:
    """What can be made on a GPU.

    Nothing on a GPU without MIG, and on one that cannot enter MIG mode by itself. For each profile
    of GPU instances that one compute instance can cover, there is a partition at each placement.
    If NVML does not say it, the GPU is served as if it had none; for good where it refuses the
    question, and otherwise until it is asked again.

    Args:
        nvml: An open session.
        gpu: The GPU.
        handle: Its handle.
        known: The GPU as it was described before. NVML is not asked again for what cannot change.

    Raises:
        NvmlError: The GPU does not answer at all, or its driver is gone.
    """
    if gpu.architecture == "Ampere" and not gpu.is_mig_enabled:
        return Partitions()  # it needs a reset for that
    if known is not None and known.uuid == gpu.uuid and known.partitions:
        return Partitions(
            tuple(
                replace(partition, parent_number=gpu.number, pci=gpu.pci)
                for partition in known.partitions
            )
        )
    try:
        if not nvml_mig.has_mig(nvml, handle):
            return Partitions()
        return Partitions(_ask_partitions(nvml, gpu, handle))
    except NvmlError as error:
        if error.is_driver_error or error.code == ReturnCode.GPU_IS_LOST:
            raise  # it says nothing of partitions, and the GPU is described again when it is back
        nvml.verify_alive(handle)  # of one that has left the bus, NVML says "invalid argument"
        if not (error.is_unsupported or error.code == ReturnCode.NO_PERMISSION):
            return Partitions(problem=f"NVML does not say which there can be: {error}")
        LOG.warning(
            "No MIG devices can be made on a GPU, because NVML does not say which there can be",
            gpu=gpu.name,
            uuid=gpu.uuid,
            error=str(error),
        )
        return Partitions()


def verify_device(nvml: Nvml, gpu: DeviceHandle, device: MigDevice, listed: Listing) -> None:
    """Return only if the MIG device exists: one call, unless it was destroyed or made again.

    Raises:
        NvmlError: Its GPU does not respond.
        DeviceChangedError: It does not exist.
    """
    handle = next((each for each in listed if each.uuid == device.uuid), None)
    try:
        if handle is not None:
            nvml_mig.verify_alive(nvml, handle)
            return
    except NvmlError as error:
        if not nvml_mig.is_gone(error):
            raise
    # One with the same UUID may have other slices: NVML derives it from the place.
    former = None if handle is None else listed[handle]
    if nvml.is_mig_enabled(gpu):
        for each, attributes in nvml_mig.list_devices(nvml, gpu).items():
            if each.uuid == device.uuid and attributes == former:
                return
    raise DeviceChangedError("does not exist any more: it was destroyed")


def _ask_partitions(nvml: Nvml, gpu: Gpu, handle: DeviceHandle) -> tuple[MigPartition, ...]:
    found = [
        MigPartition(
            parent_uuid=gpu.uuid,
            parent_number=gpu.number,
            pci=gpu.pci,
            profile=_profile(info, gpu.memory_bytes),
            placement=Placement(*place),
        )
        for info in nvml_mig.profiles(nvml, handle).values()
        if info.slices in nvml_mig.COMPUTE_PROFILES
        for place in nvml_mig.possible_placements(nvml, handle, info.id)
    ]
    return tuple(sorted(found, key=lambda each: each.name))


def _describe(
    nvml: Nvml,
    gpu: Gpu,
    handle: DeviceHandle,
    mig: MigHandle,
    attributes: MigAttributes,
    profiles: Mapping[int, MigProfileInfo],
) -> MigDevice | None:
    where = nvml_mig.locate(nvml, handle, mig)
    if where is None:
        return None
    info = profiles.get(where.profile_id)
    if info is None:
        LOG.warning(
            "A MIG device has a profile that NVML does not list", uuid=mig.uuid, id=where.profile_id
        )
        return None
    return MigDevice(
        uuid=mig.uuid,
        parent_uuid=gpu.uuid,
        parent_number=gpu.number,
        pci=gpu.pci,
        profile=_profile(info, gpu.memory_bytes),
        placement=Placement(where.start, where.size),
        gpu_instance=where.gpu_instance,
        compute_instance=where.compute_instance,
        compute_start=where.compute_start,
        compute_slices=attributes.compute_instance_slices,
        multiprocessors=attributes.multiprocessors,
    )


def _profile(info: MigProfileInfo, total_bytes: int | None) -> MigProfile:
    name = mig_profiles.profile_name(
        info.index, info.slices, info.memory_bytes, total_bytes, info.name
    )
    return MigProfile(
        name=name,
        id=info.id,
        index=info.index,
        slices=info.slices,
        multiprocessors=info.multiprocessors,
        copy_engines=info.copy_engines,
        decoders=info.decoders,
        encoders=info.encoders,
        jpeg_engines=info.jpeg_engines,
        ofa_engines=info.ofa_engines,
        memory_bytes=info.memory_bytes,
    )
