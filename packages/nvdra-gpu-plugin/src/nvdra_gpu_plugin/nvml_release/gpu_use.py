# SPDX-License-Identifier: Apache-2.0
"""Which GPUs are in use, so that an administrator does not reset one below a running pod."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from nvdra_api import names
from nvdra_api.errors import PermanentError, Reason
from nvdra_api.ids import ClaimUID, DeviceName
from nvdra_runtime.claims.prepared_claims import PreparedClaims

from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord

FORCE_REMEDY: Final = (
    "drain the node first; or use release --force, or the annotation "
    f"{names.RELEASE_NVML_ANNOTATION}=true,force, if pods that use these GPUs may fail"
)

Claims = PreparedClaims[GpuClaimRecord]


def blocking_claim(claims: Claims) -> ClaimUID | None:
    """One of the claims that hold GPUs; None if there are none.

    What is left of claims that have ended goes with a reset. A GPU that is on vfio for a claim is
    none of the NVIDIA driver's.
    """
    return next(iter(_blocking(claims)), None)


def _blocking(claims: Claims) -> list[ClaimUID]:
    return [uid for uid in claims.held if uid not in claims or _gpus(claims[uid])]


def _gpus(record: GpuClaimRecord) -> list[GpuDeviceRecord]:
    return [device for device in record.devices if not device.is_vfio]


def check_unused(claims: Claims) -> None:
    """Return only if no claim holds a GPU.

    Raises:
        PermanentError: `DeviceInUse`. The claims are named to operators only.
    """
    if blocking_claim(claims) is None:
        return
    gpus = ", ".join(_claims_by_gpu(claims)) or "GPUs that are not known"
    count = len(_blocking(claims))
    holders = "1 prepared claim holds" if count == 1 else f"{count} prepared claims hold"
    raise PermanentError(
        Reason.DEVICE_IN_USE,
        f"NVML is not released, because {holders} {gpus}",
        FORCE_REMEDY,
        operator_message="NVML is not released, because these GPUs are in use: "
        + "; ".join(descriptions(claims)),
    )


def check_settings(settings: Mapping[DeviceName, Sequence[str]]) -> None:
    """Return only if no GPU loses settings with its last client.

    Persistence mode would keep them, and the GPU from being reset.

    Raises:
        PermanentError: `DeviceInUse`.
    """
    if not settings:
        return
    lost = "; ".join(f"{gpu}: {', '.join(values)}" for gpu, values in settings.items())
    raise PermanentError(
        Reason.DEVICE_IN_USE,
        f"NVML is not released, because GPUs without persistence mode would lose settings: {lost}",
        "note them, use release --force, or the annotation "
        f"{names.RELEASE_NVML_ANNOTATION}=true,force, and set them again afterwards",
    )


def persistence_advice(persistent: Collection[DeviceName]) -> str:
    """What to do before a GPU in persistence mode is reset; empty if there is none.

    The driver refuses the reset, "In use by another client", because nvidia-persistenced or the
    kernel module has the GPU open (NVIDIA/NVSentinel#1690, NVIDIA/gpu-operator#118).
    """
    if not persistent:
        return ""
    return (
        f"persistence mode has {', '.join(persistent)} open: before a reset, turn it off "
        "(nvidia-smi -pm 0 -i GPU) or stop nvidia-persistenced, and afterwards turn it on again; "
        "compute mode and power limit are lost with it"
    )


def descriptions(claims: Claims) -> list[str]:
    """Each GPU that is in use with its claims and their pods, for operators."""
    unreadable = [f"unknown GPUs by {ref}" for ref in claims.unreadable.values()]
    by_gpu = _claims_by_gpu(claims).items()
    return [*(f"{gpu} by {', '.join(holders)}" for gpu, holders in by_gpu), *unreadable]


def _claims_by_gpu(claims: Claims) -> Mapping[str, list[str]]:
    found = defaultdict(list)
    for gpu, holder in sorted(_holders(claims)):
        found[gpu].append(holder)
    return found


def _holders(claims: Claims) -> Iterator[tuple[str, str]]:
    for record in claims.values():
        if record.is_released:
            continue
        pods = ", ".join(record.pod_names) or "no pod"
        for device in _gpus(record):
            yield device.device, f"{record.ref} of {pods}"
