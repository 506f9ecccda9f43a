"""What the scheduler gave a claim, seen by one driver.

Source: spec/kubelet-dra-protocol.md §4.1.
"""

from nvdra_api.types.claims import DeviceAllocation, DeviceResult, ResourceClaim
from nvdra_api.types.errors import Reason, RetryableError


def devices(claim: ResourceClaim) -> DeviceAllocation:
    """The allocation of a claim's devices.

    Raises:
        RetryableError: `NotAllocated`: the scheduler has not decided, or has taken it back.
    """
    if claim.status.allocation is None:
        raise RetryableError(
            Reason.NOT_ALLOCATED,
            f"claim {claim.ref} is not allocated",
            "kubectl describe on the claim and its pod shows what the scheduler waits for",
            claim=str(claim.ref),
        )
    return claim.status.allocation.devices


def results(claim: ResourceClaim, driver: str) -> tuple[DeviceResult, ...]:
    """Our share of the allocation, in its order; `base_request` of each is what the kubelet knows.

    Raises:
        RetryableError: `NotAllocated`: no device of this driver is allocated to the claim.
    """
    ours = tuple(result for result in devices(claim).results if result.driver == driver)
    if not ours:
        raise RetryableError(
            Reason.NOT_ALLOCATED,
            f"claim {claim.ref} is allocated, but no device of {driver} is among its results",
            "delete the pod, so that its claim is allocated anew",
            claim=str(claim.ref),
        )
    return ours
