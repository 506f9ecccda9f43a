# SPDX-License-Identifier: Apache-2.0
"""Decides which MPS control daemons a claim needs. Pure.

GPUs that have their config from the same entry of the claim share one daemon. Each MIG device has
one of its own, because a process of CUDA, as the MPS server is one, has one MIG device. Source:
docs/reference/gpu-prepare.md, "MPS"; docs/decisions/gpu-plugin.md.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from nvdra_api.errors import PermanentError, Reason
from nvdra_api.ids import ClaimUID, DeviceUUID
from nvdra_api.quantity import Quantity
from nvdra_api.resource.claims import ClaimRef
from nvdra_api.v1beta1 import GpuConfig, MigDeviceConfig, sharing
from nvdra_api.v1beta1.sharing import InvalidDeviceSelectorError, InvalidLimitError, MpsConfig
from nvdra_runtime.claims.opaque_configs import ConfiguredResult

from nvdra_gpu_plugin.devices.inventory import Allocated, Gpu, MigPartition
from nvdra_gpu_plugin.devices.steps import ShareByMps

_DIGITS: Final = 5
_MULTI_USER_SINCE: Final = (7, 0)
"""Volta. Before, one user at a time has the MPS server."""
_MIG_DEVICES: Final = 7
"""How many a GPU has at most."""
_SMALLEST_SHM_KIB: Final = 65536
"""What container runtimes give a container by default."""


def mps_config(entry: ConfiguredResult) -> MpsConfig | None:
    """How a device is shared by MPS; None if it is not. Who only monitors a GPU is no client."""
    if entry.result.admin_access or not isinstance(entry.config, GpuConfig | MigDeviceConfig):
        return None
    return entry.config.mps


def steps(
    claim: ClaimRef,
    configured: Sequence[ConfiguredResult],
    devices: Sequence[Allocated],
) -> tuple[ShareByMps, ...]:
    """The daemons that a claim needs, in the order of its devices.

    Raises:
        PermanentError: `InvalidConfig`: a GPU cannot be shared by several users, a memory limit is
            for a device that does not have this config, or a request would need several daemons.
    """
    groups: dict[object, list[tuple[ConfiguredResult, Allocated]]] = {}
    for entry, device in zip(configured, devices, strict=True):
        if mps_config(entry) is not None:
            mig_device = None if isinstance(device, Gpu) else device.name
            groups.setdefault((entry.config_index, mig_device), []).append((entry, device))
    _check_requests(claim, groups.values())
    return tuple(_step(claim, group) for group in groups.values())


def memory_limits(
    step: ShareByMps, claim: ClaimRef, uuids: Sequence[DeviceUUID]
) -> Mapping[str, int]:
    """The memory limits of a daemon's devices, in its mega units, by UUID.

    Args:
        step: The daemon.
        claim: Its claim.
        uuids: The devices, sorted.

    Raises:
        PermanentError: `InvalidConfig`: a limit is for another device, or too low.
    """
    default = Quantity.parse(step.default_limit) if step.default_limit else None
    per_device = {key: Quantity.parse(text) for key, text in step.device_limits.items()}
    try:
        return sharing.mps_limits(uuids, default, per_device)
    except (InvalidDeviceSelectorError, InvalidLimitError) as error:
        raise PermanentError(
            Reason.INVALID_CONFIG,
            f"claim {claim}, mpsConfig: {error}; the devices that have this config are "
            f"{', '.join(uuids)}",
            "correct defaultPerDevicePinnedMemoryLimit, whose keys are UUIDs of the claim's "
            "devices, or their indices in this order, and create a new claim",
            claim=str(claim),
        ) from error


def shm_kib(memory_kib: int, gpu_count: int, device_count: int, *, is_mig: bool) -> int:
    """How much shared memory the clients of a daemon may have together, in KiB.

    Half of the node's memory, as with the reference driver, but for all daemons of the node: each
    has the part of its GPUs, or of its MIG device. What is written there stays until the claim
    ends.

    Args:
        memory_kib: The node's memory; 0 if it is not known.
        gpu_count: How many GPUs the node has.
        device_count: How many devices the daemon has.
        is_mig: Whether they are MIG devices.
    """
    of_a_gpu = memory_kib // 2 // max(gpu_count, 1)
    of_a_device = of_a_gpu // _MIG_DEVICES if is_mig else of_a_gpu
    return max(of_a_device * device_count, _SMALLEST_SHM_KIB)


def daemon_id(claim: ClaimUID, uuids: Iterable[DeviceUUID]) -> str:
    """`<claim's UID>-<5 hexadecimal digits of its devices>`, which names the daemon's objects."""
    digest = hashlib.sha256(",".join(sorted(uuids)).encode()).hexdigest()
    return f"{claim}-{digest[:_DIGITS]}"


def _step(claim: ClaimRef, group: Sequence[tuple[ConfiguredResult, Allocated]]) -> ShareByMps:
    entry, first = group[0]
    config = mps_config(entry) or MpsConfig()
    if config.multi_user:
        _check_multi_user(claim, [device for _, device in group])
    limit = config.default_pinned_device_memory_limit
    device_limits = config.default_per_device_pinned_memory_limit or {}
    step = ShareByMps(
        gpu=first.uuid if isinstance(first, Gpu) else first.parent_uuid,
        device=first.name,
        devices=tuple(device.name for _, device in group),
        thread_percentage=config.default_active_thread_percentage,
        default_limit="" if limit is None else str(limit),
        device_limits={key: str(value) for key, value in device_limits.items()},
        is_multi_user=bool(config.multi_user),
    )
    known = [device.uuid for _, device in group if not isinstance(device, MigPartition)]
    if len(known) == len(group):  # otherwise when the others are made
        memory_limits(step, claim, sorted(known))
    return step


def _check_requests(
    claim: ClaimRef, groups: Iterable[Sequence[tuple[ConfiguredResult, Allocated]]]
) -> None:
    """Check that no request has devices of two daemons: a container connects to one."""
    seen: dict[str, str] = {}
    for group in groups:
        names = {entry.result.base_request: device.name for entry, device in group}
        for request, name in names.items():
            if request in seen:
                raise PermanentError(
                    Reason.INVALID_CONFIG,
                    f"claim {claim}, request {request}: {seen[request]} and {name} would each have "
                    "an MPS control daemon, and a container can connect to one",
                    "give each MIG device a request of its own, which one container names, and "
                    "create a new claim",
                    claim=str(claim),
                )
        seen |= names


def _check_multi_user(claim: ClaimRef, devices: Iterable[Allocated]) -> None:
    """Check that MPS on these GPUs lets several users in. A MIG device always does."""
    too_old = [
        f"{device.name} ({device.uuid}) has {device.compute_capability}"
        for device in devices
        if isinstance(device, Gpu)
        and tuple(map(int, device.compute_capability.split("."))) < _MULTI_USER_SINCE
    ]
    if too_old:
        raise PermanentError(
            Reason.INVALID_CONFIG,
            f"claim {claim}, mpsConfig: multiUser needs GPUs of compute capability 7.0 or later; "
            f"{', '.join(too_old)}",
            "remove multiUser, or select other GPUs by the attribute cudaComputeCapability, and "
            "create a new claim",
            claim=str(claim),
        )
