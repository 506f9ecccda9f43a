# SPDX-License-Identifier: Apache-2.0
"""The devices that the scheduler has allocated to a claim.

Source: docs/reference/resource-claims.md, "Allocation result".
"""

from nvdra_api.errors import Reason, RetryableError
from nvdra_api.resource.claims import (
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
)


def devices(claim: ResourceClaim) -> DeviceAllocationResult:
    """The allocation of a claim's devices.

    Raises:
        RetryableError: `NotAllocated`: the scheduler has not allocated devices, or no longer does.
    """
    if claim.status.allocation is None:
        raise RetryableError(
            Reason.NOT_ALLOCATED,
            f"claim {claim.ref} is not allocated",
            "kubectl describe on the claim and its pod shows what the scheduler waits for",
            claim=str(claim.ref),
        )
    return claim.status.allocation.devices


def results(claim: ResourceClaim, driver: str) -> tuple[DeviceRequestAllocationResult, ...]:
    """The allocation results of one driver, in their order.

    Raises:
        RetryableError: `NotAllocated`: no device of this driver is allocated to the claim.
    """
    own = tuple(result for result in devices(claim).results if result.driver == driver)
    if not own:
        raise RetryableError(
            Reason.NOT_ALLOCATED,
            f"claim {claim.ref} is allocated, but no device of {driver} is among its results",
            "delete the pod, so that its claim is allocated anew",
            claim=str(claim.ref),
        )
    return own
