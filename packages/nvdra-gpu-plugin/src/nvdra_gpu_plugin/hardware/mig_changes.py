# SPDX-License-Identifier: Apache-2.0
"""Makes and destroys the MIG devices of claims, and switches MIG mode for them.

Each function first looks at what there is, so that it can be repeated after a crash at any point.
All of them block: they run on the thread of the GPU, while its lock is held.
Source: docs/reference/gpu-prepare.md, "Dynamic MIG".
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_runtime.claims.changes import UnnamedUseError
from nvdra_runtime.node import nvml_mig_changes
from nvdra_runtime.node.nvml import DeviceHandle, Nvml, NvmlError, ReturnCode
from nvdra_runtime.node.nvml_mig_changes import GpuInstance
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.devices.steps import MadeInstance, MakeMigDevice

LOG = logs.logger(__name__)

_HOPPER: Final = 9
"""NVML's number of the first architecture that needs no reset to switch its MIG mode."""

_PROFILES: Final = range(32)
"""NVML's indices of profiles: 18 at present, of which a GPU has a few."""


SwitchMode = Callable[[Nvml, DeviceHandle, str], None]
"""Switches MIG mode for a device, whose name is for errors."""


def check_free(nvml: Nvml, gpu: DeviceHandle, step: MakeMigDevice) -> bool:
    """Return only if no foreign instance is where the MIG device is to be made.

    Returns:
        Whether the GPU is in MIG mode.

    Raises:
        PermanentError: `UnknownDevice`.
        NvmlError: The GPU does not answer.
    """
    if not nvml.is_mig_enabled(gpu):
        return False
    if (found := _find(nvml, gpu, step)) is not None:
        raise _taken(step, found)
    return True


def enable_mig_mode(nvml: Nvml, gpu: DeviceHandle, device: str) -> None:
    """Switch MIG mode on, unless it is.

    Raises:
        PermanentError: `MigModeRequiresReset`.
        RetryableError: `DeviceInUse`: a program keeps the GPU from being switched.
        NvmlError: Anything else.
    """
    if not nvml.is_mig_enabled(gpu):
        _switch_mig_mode(nvml, gpu, device, enabled=True)


def make_instance(nvml: Nvml, gpu: DeviceHandle, step: MakeMigDevice) -> int:
    """Make the GPU instance of the MIG device, unless an interrupted attempt has, and say its id.

    Raises:
        PermanentError: `UnknownDevice`: another instance is in the way.
        RetryableError: `DeviceInUse`: a program keeps the GPU from being divided.
        NvmlError: Anything else. What was made until then is left for `destroy`.
    """
    found = _find(nvml, gpu, step)
    if found is None:
        return _create(nvml, gpu, step).id
    if not _is_begun(nvml, gpu, step, found):
        raise _taken(step, found)
    return found.id


def make_device(nvml: Nvml, gpu: DeviceHandle, step: MakeMigDevice) -> MadeInstance:
    """Make the rest of the MIG device whose GPU instance the step names.

    Raises:
        RetryableError: `DeviceInUse`: the GPU instance is gone, which lasts as little as a retry.
        NvmlError: Anything else. What was made until then is left for `destroy`.
    """
    instance = _find(nvml, gpu, step)
    if instance is None or instance.id != step.made_instance:
        raise RetryableError(
            Reason.DEVICE_IN_USE,
            f"{step.device} is being made, and its GPU instance {step.made_instance} is gone",
            "leave the MIG devices of this GPU to claims; this is tried again",
            device=step.device,
        )
    computes = nvml_mig_changes.compute_instances(nvml, gpu, instance)
    compute = (
        computes[0]
        if computes
        else nvml_mig_changes.create_compute_instance(nvml, gpu, instance, step.compute_slices)
    )
    return MadeInstance(gpu_instance=instance.id, compute_instance=compute.id, uuid=compute.uuid)


def exists(nvml: Nvml, gpu: DeviceHandle, step: MakeMigDevice) -> bool:
    """Whether the MIG device that was made is there.

    Raises:
        NvmlError: The GPU does not answer.
    """
    if step.made is None:
        return False
    made = step.made
    instance = nvml_mig_changes.gpu_instance_by_id(nvml, gpu, made.gpu_instance)
    if instance is None or not _is_at_place(instance, step):
        return False
    found = nvml_mig_changes.compute_instance_by_id(nvml, gpu, instance, made.compute_instance)
    return found is not None and found.uuid == made.uuid


def check_place(nvml: Nvml, gpu: DeviceHandle, step: MakeMigDevice) -> None:
    """Return only if a MIG device that was made and is gone can be made again where it was.

    What is left of it is no obstacle: its GPU instance, if only the compute instance is gone.

    Raises:
        PermanentError: `UnknownDevice`: a foreign instance is there by now.
        NvmlError: The GPU does not answer.
    """
    if step.made is None or not nvml.is_mig_enabled(gpu):
        return
    rest = _made_instance(nvml, gpu, step, step.made)
    for instance in _instances(nvml, gpu):
        if _overlaps(instance, step) and (rest is None or instance.id != rest.id):
            raise _taken(step, instance)


def destroy(nvml: Nvml, gpu: DeviceHandle, step: MakeMigDevice) -> None:
    """Destroy the MIG device, as far as it was made.

    Raises:
        UnnamedUseError: A client still uses it, and none computes in it.
        RetryableError: `DeviceInUse`: processes still use it.
        NvmlError: Anything else.
    """
    made = step.made
    instance = _begun(nvml, gpu, step) if made is None else _made_instance(nvml, gpu, step, made)
    if instance is not None:
        try:
            for compute in nvml_mig_changes.compute_instances(nvml, gpu, instance):
                nvml_mig_changes.destroy_compute_instance(nvml, gpu, compute)
            nvml_mig_changes.destroy_gpu_instance(nvml, gpu, instance)
        except NvmlError as error:
            if error.code == ReturnCode.IN_USE:
                processes = nvml_mig_changes.processes_in(nvml, gpu, instance)
                raise _still_used(step.device, processes, error) from error
            raise


def leave_mig_mode(nvml: Nvml, gpu: DeviceHandle, device: str) -> None:
    """Switch MIG mode off, unless an instance is there, or the GPU needs a reset for it.

    Raises:
        PermanentError: `MigModeRequiresReset`.
        RetryableError: `DeviceInUse`: a program keeps the GPU from being switched.
        NvmlError: Anything else.
    """
    if not nvml.is_mig_enabled(gpu) or nvml.architecture(gpu) < _HOPPER:
        return
    if next(_instances(nvml, gpu), None) is None:
        _switch_mig_mode(nvml, gpu, device, enabled=False)


def is_mig_mode_off(nvml: Nvml, gpu: DeviceHandle) -> bool:
    """Whether the GPU is not in MIG mode.

    Raises:
        NvmlError: The GPU does not answer.
    """
    return not nvml.is_mig_enabled(gpu)


def disable_mig_mode(nvml: Nvml, gpu: DeviceHandle, device: str) -> None:
    """Switch MIG mode off, unless it is.

    Raises:
        PermanentError: `UnknownDevice`: there are instances; `MigModeRequiresReset`.
        RetryableError: `DeviceInUse`: a program keeps the GPU from being switched.
        NvmlError: Anything else.
    """
    if not nvml.is_mig_enabled(gpu):
        return
    left = next(_instances(nvml, gpu), None)
    if left is not None:
        raise PermanentError(
            Reason.UNKNOWN_DEVICE,
            f"{device} ({gpu.uuid}) is divided: it has MIG GPU instance {left.id}, which no "
            "claim has made, and cannot be handed out whole",
            "destroy it (nvidia-smi mig -dci, then -dgi), or delete the pod so that it is "
            "scheduled anew",
            device=device,
        )
    _switch_mig_mode(nvml, gpu, device, enabled=False)


def _switch_mig_mode(nvml: Nvml, gpu: DeviceHandle, device: str, *, enabled: bool) -> None:
    mode = "on" if enabled else "off"
    if enabled and nvml.architecture(gpu) < _HOPPER:
        raise _requires_reset(device, mode)
    try:
        with _switching(device, mode):
            _check_activation(nvml_mig_changes.set_mig_mode(nvml, gpu, enabled=enabled), gpu)
        if nvml.is_mig_enabled(gpu) != enabled:
            raise _requires_reset(device, mode)
    except DriverError:
        _keep_mig_mode(nvml, gpu, enabled=not enabled)
        raise


def _keep_mig_mode(nvml: Nvml, gpu: DeviceHandle, *, enabled: bool) -> None:
    """Ask for the mode that is in force, so that it does not change with a later reset."""
    with suppress(NvmlError):
        nvml_mig_changes.set_mig_mode(nvml, gpu, enabled=enabled)


def _create(nvml: Nvml, gpu: DeviceHandle, step: MakeMigDevice) -> GpuInstance:
    try:
        return nvml_mig_changes.create_gpu_instance(
            nvml, gpu, step.profile_index, step.start, step.size
        )
    except NvmlError as error:
        if error.code == ReturnCode.IN_USE:
            raise _in_use(step.device, error) from error
        if error.code != ReturnCode.INSUFFICIENT_RESOURCES:
            raise
        overlapping = [instance for instance in _instances(nvml, gpu) if _overlaps(instance, step)]
        if overlapping:
            raise _taken(step, overlapping[0]) from error
        raise RetryableError(
            Reason.DEVICE_IN_USE,
            f"{step.device} cannot be made now: {error}; no instance is in its place",
            "if it lasts, look at nvidia-smi mig -lgi and -lgipp on the node",
            device=step.device,
        ) from error


def _find(nvml: Nvml, gpu: DeviceHandle, step: MakeMigDevice) -> GpuInstance | None:
    return nvml_mig_changes.find_gpu_instance(nvml, gpu, step.profile_index, step.start, step.size)


def _begun(nvml: Nvml, gpu: DeviceHandle, step: MakeMigDevice) -> GpuInstance | None:
    """What an interrupted attempt has made; None if there is none, or it is not the claim's."""
    found = _find(nvml, gpu, step)
    if found is None or _is_begun(nvml, gpu, step, found):
        return found
    LOG.warning(
        "A MIG device is where an interrupted claim was to have its own, and is left alone",
        device=step.device,
        gpu=gpu.uuid,
        gpu_instance=found.id,
    )
    return None


def _is_begun(nvml: Nvml, gpu: DeviceHandle, step: MakeMigDevice, instance: GpuInstance) -> bool:
    """Whether an instance at the step's place is what an interrupted attempt has made.

    The record has its id from its creation on, before it gets a compute instance. Without the id,
    the attempt has made it at most a moment before it was interrupted, and no compute instance.
    """
    if step.made_instance is not None:
        return instance.id == step.made_instance
    return not nvml_mig_changes.compute_instances(nvml, gpu, instance)


def _made_instance(
    nvml: Nvml, gpu: DeviceHandle, step: MakeMigDevice, made: MadeInstance
) -> GpuInstance | None:
    """The GPU instance that was made; None if it is gone, even if another one has its id."""
    found = nvml_mig_changes.gpu_instance_by_id(nvml, gpu, made.gpu_instance)
    if found is None or not _is_at_place(found, step):
        return None
    computes = nvml_mig_changes.compute_instances(nvml, gpu, found)
    # Without any, the compute instance was destroyed before, and the GPU instance was in use.
    is_ours = not computes or any(compute.uuid == made.uuid for compute in computes)
    return found if is_ours else None


def _instances(nvml: Nvml, gpu: DeviceHandle) -> Iterator[GpuInstance]:
    """The GPU instances of the GPU, of whatever profile, with compute instances or not."""
    for profile in _PROFILES:
        try:
            yield from nvml_mig_changes.gpu_instances(nvml, gpu, profile)
        except NvmlError as error:
            if error.code != ReturnCode.INVALID_ARGUMENT:  # NVML has no more profiles
                raise
            return


def _is_at_place(instance: GpuInstance, step: MakeMigDevice) -> bool:
    found = (instance.profile_id, instance.start, instance.size)
    return found == (step.profile_id, step.start, step.size)


def _overlaps(instance: GpuInstance, step: MakeMigDevice) -> bool:
    return instance.start < step.start + step.size and step.start < instance.start + instance.size


class _switching:
    """Translates the errors of a call that switches MIG mode."""

    def __init__(self, device: str, mode: str) -> None:
        self._device = device
        self._mode = mode

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, NvmlError):
            return
        if error.code == ReturnCode.IN_USE:
            raise RetryableError(
                Reason.DEVICE_IN_USE,
                f"{self._device}: MIG mode cannot be switched {self._mode}, because a program uses "
                f"the GPU: {error}",
                "stop what uses it outside of pods (nvidia-smi, nvidia-persistenced and DCGM "
                "may); the kubelet tries again",
                device=self._device,
            ) from error
        if error.code == ReturnCode.RESET_REQUIRED or error.is_unsupported:
            raise _requires_reset(self._device, self._mode) from error


def _check_activation(status: int, gpu: DeviceHandle) -> None:
    """The call has succeeded; check that the mode is in force.

    Raises:
        NvmlError: It is not.
    """
    if status:
        code = status if status == ReturnCode.IN_USE else ReturnCode.RESET_REQUIRED
        text = f"the mode was accepted but is not in force (activation status {status})"
        raise NvmlError(code, "nvmlDeviceSetMigMode", gpu.uuid, text)


def _requires_reset(device: str, mode: str) -> PermanentError:
    return PermanentError(
        Reason.MIG_MODE_REQUIRES_RESET,
        f"{device}: the GPU's MIG mode must be switched {mode}, which it does with a reset only",
        f"drain the node, run nvidia-smi -mig {int(mode == 'on')} for the GPU and reset it "
        "(nvidia-smi --gpu-reset), or reboot the node",
        device=device,
    )


def _taken(step: MakeMigDevice, instance: GpuInstance) -> PermanentError:
    end = instance.start + instance.size - 1
    return PermanentError(
        Reason.UNKNOWN_DEVICE,
        f"{step.device} cannot be made on {step.gpu}: memory slices {instance.start} to {end} are "
        f"taken by MIG GPU instance {instance.id}, which no claim has made",
        "destroy it (nvidia-smi mig -dci, then -dgi), or delete the pod so that it is scheduled "
        "anew",
        device=step.device,
    )


def _still_used(device: str, processes: Sequence[int], error: NvmlError) -> RetryableError:
    if not processes:
        return UnnamedUseError(
            Reason.DEVICE_IN_USE,
            f"{device} is still in use by a client of the driver that computes nothing: {error}",
            "this is tried again; if it lasts, stop what monitors the GPU outside of pods, such as "
            "DCGM",
            device=device,
        )
    pids = ", ".join(map(str, processes))
    return RetryableError(
        Reason.DEVICE_IN_USE,
        f"{device} is still in use by processes, with PIDs {pids}: {error}",
        "this is tried again; if it lasts, find out why these processes of the pod have not ended",
        device=device,
    )


def _in_use(device: str, error: NvmlError) -> RetryableError:
    return RetryableError(
        Reason.DEVICE_IN_USE,
        f"{device} is still in use by another client of the driver: {error}",
        "this is tried again; if it lasts, look for programs of the pod that have not ended, and "
        "for monitoring tools, with nvidia-smi on the node",
        device=device,
    )
