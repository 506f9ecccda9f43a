# SPDX-License-Identifier: Apache-2.0
"""What a failed NVML call on a GPU means for a claim."""

from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_runtime.node.nvml import NvmlError


def explain(device: str, uuid: str, error: NvmlError | ValueError) -> DriverError:
    """The error that the claim is refused with.

    Args:
        device: The claim's device.
        uuid: Its UUID, or that of its GPU.
        error: What NVML has answered, or a value that cannot be.
    """
    if isinstance(error, NvmlError) and error.is_driver_error:
        return RetryableError(
            Reason.DRIVER_MISMATCH,
            f"the driver of this node's GPUs was removed or replaced: {error}",
            "the plugin checks for a driver and continues as soon as it finds one",
            device=device,
        )
    return PermanentError(
        Reason.DEVICE_UNHEALTHY,
        f"{device} ({uuid}) does not work: {error}",
        "a pod that waits for it gets another GPU when it is deleted; an administrator: look for "
        "Xid messages in the node's kernel log, reset the GPU or reboot the node",
        device=device,
    )
