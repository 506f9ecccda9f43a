# SPDX-License-Identifier: Apache-2.0
"""What a claim is told of a GPU that does not answer."""

import pynvml
from nvdra_api.errors import PermanentError, Reason, RetryableError
from nvdra_gpu_plugin.hardware import nvml_failures
from nvdra_runtime.node.nvml import NvmlError


def failure(code: int) -> NvmlError:
    return NvmlError(code, "nvmlDeviceGetUUID", "GPU-1", str(pynvml.NVMLError(code)))


def test_the_remedy_fits_a_pod_that_waits_and_one_that_is_being_deleted() -> None:
    found = nvml_failures.explain("gpu-0", "GPU-1", failure(pynvml.NVML_ERROR_GPU_IS_LOST))
    assert isinstance(found, PermanentError)
    assert found.reason == Reason.DEVICE_UNHEALTHY
    assert "gpu-0 (GPU-1) does not work: " in str(found)
    assert "a pod that waits for it gets another GPU when it is deleted" in str(found)
    assert "reset the GPU or reboot the node" in str(found)


def test_a_driver_that_is_exchanged_is_waited_for() -> None:
    found = nvml_failures.explain("gpu-0", "GPU-1", failure(pynvml.NVML_ERROR_DRIVER_NOT_LOADED))
    assert isinstance(found, RetryableError)
    assert found.reason == Reason.DRIVER_MISMATCH


def test_a_value_that_cannot_be_is_the_devices_fault() -> None:
    found = nvml_failures.explain("gpu-0", "GPU-1", ValueError("no UUID"))
    assert "gpu-0 (GPU-1) does not work: no UUID" in str(found)
