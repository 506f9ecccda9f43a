# SPDX-License-Identifier: Apache-2.0
"""What a claim may have of a device: all of it, or a share beside other claims. Pure.

The scheduler gives out shares of devices that are published for several claims, each with a share
ID. A share is the whole device for the container: memory and time are divided by agreement, not by
hardware. So all claims that share a GPU must want the same of it.

Source: docs/reference/gpu-prepare.md, "Consumable shares"; docs/reference/resource-claims.md,
"Allocation result".
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from nvdra_api import names
from nvdra_api.errors import PermanentError, Reason
from nvdra_api.quantity import Quantity
from nvdra_api.resource.claims import ClaimRef, DeviceRequestAllocationResult, ResourceClaim
from nvdra_api.v1beta1 import DeviceConfig, GpuConfig, MigDeviceConfig, sharing
from nvdra_api.v1beta1.sharing import Interval
from nvdra_runtime.claims.opaque_configs import ConfiguredResult
from nvdra_runtime.claims.records import DeviceInUseError

from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord
from nvdra_gpu_plugin.devices.inventory import Allocated, MigPartition
from nvdra_gpu_plugin.devices.vfio_devices import VfioDevice
from nvdra_gpu_plugin.share_policy import SharePolicy

_MIB: Final = 1024**2


class SharedDifferentlyError(DeviceInUseError):
    """Another claim has a share of the device and wants it in another way.

    Attributes:
        wanted: The time slice that this claim wants; None if it wants none.
        present: That of the other claim.
    """

    def __init__(
        self,
        claim: GpuClaimRecord,
        device: str,
        holder: GpuClaimRecord,
        wanted: Interval | None,
        present: Interval | None,
    ) -> None:
        self.wanted = wanted
        self.present = present
        keys = tuple(each.wait_key for each in claim.devices)
        super().__init__(claim.ref, device, holder, keys)

    @property
    def named_message(self) -> str:
        """The message with the claim and the pods that hold the device."""
        return f"{super().named_message} {self._difference}"

    @property
    def anonymous_message(self) -> str:
        """The message without any name of the holder."""
        return f"{super().anonymous_message} {self._difference}"

    @property
    def _difference(self) -> str:
        return (
            f"as a share with {_slice_text(self.present)}, and this claim wants a share with "
            f"{_slice_text(self.wanted)}; claims that share a GPU need the same sharing config"
        )


def is_share(
    result: DeviceRequestAllocationResult,
    device: Allocated,
    policy: SharePolicy | None,
) -> bool:
    """Whether the claim gets a share, beside other claims.

    Args:
        result: What was allocated.
        device: The device of this name. One that is made for a claim is for that claim alone, and
            so is a vfio device.
        policy: How devices are shared on this node; None if they are not.
    """
    can_be_shared = not isinstance(device, MigPartition | VfioDevice)
    return policy is not None and result.share_id is not None and can_be_shared


def check_allocation(
    claim: ClaimRef,
    result: DeviceRequestAllocationResult,
    device: Allocated,
    policy: SharePolicy | None,
) -> None:
    """Check that the claim gets what it was allocated, and not more.

    Raises:
        PermanentError: `InvalidConfig`: it was allocated part of a device that is handed out whole.
    """
    if result.admin_access or is_share(result, device, policy):
        return
    consumed = result.consumed_capacity or {}
    capacity = "addressableMemory" if isinstance(device, VfioDevice) else "memory"
    memory = consumed.get(capacity, consumed.get(f"{names.GPU_DRIVER}/{capacity}"))
    # What is published, and so the most that can be consumed, is in whole MiB.
    is_all = memory is not None and memory.amount >= (device.memory_bytes or 0) // _MIB * _MIB
    if not consumed or is_all:
        return
    if isinstance(device, VfioDevice):
        raise PermanentError(
            Reason.INVALID_CONFIG,
            f"claim {claim}, request {result.request}: it was allocated part of {device.name} "
            f"({_amounts(consumed)}), but a virtual machine has a whole GPU",
            "ask for the vfio device without capacity, or for a share of a GPU in a container",
            claim=str(claim),
            device=device.name,
        )
    raise PermanentError(
        Reason.INVALID_CONFIG,
        f"claim {claim}, request {result.request}: it was allocated part of {device.name} "
        f"({_amounts(consumed)}) by what was published before or by another driver, but this "
        "node hands it out whole",
        "delete the pod, so that its claim is allocated anew from what the node offers now; to "
        "share devices, set --consumable-shares on all nodes",
        claim=str(claim),
        device=device.name,
    )


def check_configs(
    claim: ClaimRef,
    configured: Sequence[ConfiguredResult],
    devices: Sequence[GpuDeviceRecord],
    policy: SharePolicy | None,
) -> None:
    """Check that the shares of the claim can be what their configs ask for.

    Args:
        claim: The claim.
        configured: Its results, each with its config.
        devices: What each gets, in the same order.
        policy: How devices are shared on this node.

    Raises:
        PermanentError: `InvalidConfig`: MPS for a share; two shares of a GPU that differ; a config
            of the claim where only a DeviceClass has one.
    """
    slices: dict[str, Interval | None] = {}
    for entry, device in zip(configured, devices, strict=True):
        if not device.is_shared or device.is_admin:
            continue
        if _wants_mps(entry.config):
            raise _refusal(
                claim,
                device,
                "MPS is not available for a share of a device: its settings would be those of all "
                "claims that share it",
                "remove the MPS strategy from the claim's config, or let one claim have the whole "
                "device on nodes without --consumable-shares",
            )
        if entry.is_of_claim and policy is not None and policy.is_configured_by_class:
            raise _refusal(
                claim,
                device,
                f"it has a config of its own for a share of {device.device}, and on this node only "
                "the DeviceClass says how a shared device is used (--share-configs=class)",
                "remove the config from the claim, and choose a DeviceClass whose config fits",
            )
        wanted = entry.config.time_slice if isinstance(entry.config, GpuConfig) else None
        if slices.setdefault(device.uuid, wanted) != wanted:
            raise _refusal(
                claim,
                device,
                f"it has several shares of {device.device}, with {_slice_text(wanted)} and with "
                f"{_slice_text(slices[device.uuid])}",
                "give all requests of the claim the same sharing config",
            )


def check_same_use(
    record: GpuClaimRecord, device: GpuDeviceRecord, sharer: GpuClaimRecord | None
) -> None:
    """Check that a claim wants a GPU as another one that has a share of it.

    Args:
        record: What the claim would get.
        device: Its share.
        sharer: Another claim with a share of the same device; None if there is none. All that
            share it already agree.

    Raises:
        SharedDifferentlyError: It does not.
        PermanentError: `InvalidConfig`: it does not, and a pod uses both: it would wait for itself.
    """
    if sharer is None:
        return
    wanted, present = record.time_slice(device.gpu_uuid), sharer.time_slice(device.gpu_uuid)
    if wanted == present:
        return
    if set(record.pods) & set(sharer.pods):
        raise _refusal(
            record.ref,
            device,
            f"it has a share of {device.device} with {_slice_text(wanted)}, and claim "
            f"{sharer.ref} of the same pod has one with {_slice_text(present)}",
            "give the claims of the pod the same sharing config, or have them on different GPUs by "
            "selectors, and create new claims",
        )
    raise SharedDifferentlyError(record, device.device, sharer, wanted, present)


def minimum_capacity(claim: ResourceClaim, configured: Iterable[ConfiguredResult]) -> str:
    """The least capacity that the claim asks for of whole devices; empty if it does not say.

    On a device that allows one allocation, Kubernetes takes `capacity.requests` for a selector: the
    claim holds all of the device. Source: docs/decisions/gpu-plugin.md.
    """
    whole = (entry.result for entry in configured if entry.result.share_id is None)
    requests = dict.fromkeys(result.request for result in whole)
    asked = (_amounts(claim.requested_capacity(request)) for request in requests)
    return ", ".join(amounts for amounts in asked if amounts)


def _wants_mps(config: DeviceConfig) -> bool:
    wanted = config.sharing if isinstance(config, GpuConfig | MigDeviceConfig) else None
    return wanted is not None and wanted.strategy == sharing.MPS


def _refusal(claim: ClaimRef, device: GpuDeviceRecord, problem: str, remedy: str) -> PermanentError:
    return PermanentError(
        Reason.INVALID_CONFIG,
        f"claim {claim}, request {device.request}: {problem}",
        remedy,
        claim=str(claim),
        device=device.device,
    )


def _slice_text(interval: Interval | None) -> str:
    return "no time slice" if interval is None else f"time slice {interval}"


def _amounts(capacity: Mapping[str, Quantity]) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in capacity.items())
