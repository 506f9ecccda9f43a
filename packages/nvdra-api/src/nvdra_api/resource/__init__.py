# SPDX-License-Identifier: Apache-2.0
"""Objects of `resource.k8s.io/v1`, with the type names of `k8s.io/api/resource/v1`."""

from nvdra_api.resource.claims import ClaimRef, ResourceClaim, ResourceClaimTemplate
from nvdra_api.resource.slices import Device, DeviceAttribute, ResourceSlice

__all__ = [
    "ClaimRef",
    "Device",
    "DeviceAttribute",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "ResourceSlice",
]
