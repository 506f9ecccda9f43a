# SPDX-License-Identifier: Apache-2.0
"""VfioDeviceConfig: the config of a GPU that is passed through to a virtual machine.

Source: docs/reference/api-types.md, "VfioDeviceConfig and IOMMUConfig".
"""

from collections.abc import Iterator
from typing import ClassVar, Final, Self

from pydantic import Field, StrictBool

from nvdra_api.errors import Reason
from nvdra_api.gates import Feature, FeatureGates
from nvdra_api.v1beta1.device_config import ConfigModel, DeviceConfig, NullableText
from nvdra_api.validation import Problem

_IOMMU_POLICIES: Final = ("LegacyOnly", "PreferIommuFD")


class IommuConfig(ConfigModel):
    """The kernel interface that passes the device through."""

    backend_policy: NullableText = Field(
        default="",
        description="LegacyOnly uses the VFIO group device, PreferIommuFD uses IOMMUFD if the host "
        "has it. Empty means LegacyOnly.",
        json_schema_extra={"enum": ["", *_IOMMU_POLICIES]},
    )
    enable_api_device: StrictBool | None = Field(
        default=None,
        alias="enableAPIDevice",
        description="Whether the container gets the control device, /dev/iommu or /dev/vfio/vfio.",
    )


class VfioDeviceConfig(DeviceConfig):
    """The config of a GPU that is passed through to a virtual machine."""

    kind: ClassVar[str] = "VfioDeviceConfig"
    iommu: IommuConfig | None = None

    def normalized(self, gates: FeatureGates) -> Self:
        """Write out the defaults: `LegacyOnly`, without the control device.

        The feature gates do not matter.
        """
        given = self.iommu or IommuConfig()
        iommu = IommuConfig(
            backend_policy=given.backend_policy or _IOMMU_POLICIES[0],
            enable_api_device=bool(given.enable_api_device),
        )
        return self.model_copy(update={"iommu": iommu})

    def problems(self, gates: FeatureGates) -> tuple[Problem, ...]:
        """Return the problems of the feature gate and the policy."""
        return tuple(self._problems(gates))

    def _problems(self, gates: FeatureGates) -> Iterator[Problem]:
        if not gates.is_enabled(Feature.PASSTHROUGH):
            yield Problem(
                "",
                f'{self.kind} requires the "{Feature.PASSTHROUGH}" feature gate',
                Reason.FEATURE_GATE_DISABLED,
                "remove the config, or ask the administrator to enable the feature gate",
            )
        policy = self.iommu.backend_policy if self.iommu else _IOMMU_POLICIES[0]
        if policy not in _IOMMU_POLICIES:
            yield Problem(
                "iommu.backendPolicy",
                f"unknown IOMMU backend policy: {policy}, "
                f"supported IOMMU backend policies: {', '.join(_IOMMU_POLICIES)}",
            )
