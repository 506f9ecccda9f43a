# SPDX-License-Identifier: Apache-2.0
"""Valid opaque configs of every kind, with every field."""

from typing import Any, Final

from nvdra_api.names import COMPUTE_DOMAIN_DRIVER, GPU_DRIVER, NVIDIA_API_VERSION

DOMAIN: Final = "99999999-2222-4333-8444-555555555555"


def _config(kind: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": NVIDIA_API_VERSION, "kind": kind, **fields}


_MPS: Final = {
    "defaultActiveThreadPercentage": 50,
    "defaultPinnedDeviceMemoryLimit": "10Gi",
    "defaultPerDevicePinnedMemoryLimit": {"0": "8G", "1": "512Mi"},
}
BY_TIME: Final = _config(
    "GpuConfig", sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
)
GPU: Final = (
    BY_TIME,
    _config("GpuConfig", sharing={"strategy": "MPS", "mpsConfig": _MPS}),
    _config("MigDeviceConfig", sharing={"strategy": "MPS", "mpsConfig": _MPS}),
    _config("VfioDeviceConfig", iommu={"backendPolicy": "PreferIommuFD"}),
)
DOMAINS: Final = (
    _config("ComputeDomainChannelConfig", domainID=DOMAIN, allocationMode="Single"),
    _config("ComputeDomainDaemonConfig", domainID=DOMAIN),
)
VALID: Final = (
    *((GPU_DRIVER, config) for config in GPU),
    *((COMPUTE_DOMAIN_DRIVER, config) for config in DOMAINS),
)
