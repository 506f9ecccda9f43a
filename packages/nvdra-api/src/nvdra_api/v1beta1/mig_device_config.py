# SPDX-License-Identifier: Apache-2.0
"""MigDeviceConfig: the config of a MIG device.

Source: docs/reference/api-types.md, "MigDeviceConfig".
"""

from collections.abc import Iterator
from typing import ClassVar, Self

from pydantic import Field

from nvdra_api.gates import Feature, FeatureGates
from nvdra_api.v1beta1 import sharing
from nvdra_api.v1beta1.device_config import ConfigModel, DeviceConfig, NullableText
from nvdra_api.v1beta1.sharing import MpsConfig
from nvdra_api.validation import Problem


class MigDeviceSharing(ConfigModel):
    """How several containers share one MIG device. `TimeSlicing` has no effect on a MIG device."""

    strategy: NullableText = Field(
        default="",
        json_schema_extra={"required": True, "enum": list(sharing.STRATEGIES)},
    )
    mps_config: MpsConfig | None = None

    def normalized(self, gates: FeatureGates) -> Self:
        """Write out an empty `mpsConfig` if the strategy is MPS and its feature gate is enabled."""
        is_mps = self.strategy == sharing.MPS and gates.is_enabled(Feature.MPS)
        if is_mps and self.mps_config is None:
            return self.model_copy(update={"mps_config": MpsConfig()})
        return self

    def problems(self, gates: FeatureGates) -> Iterator[Problem]:
        """Yield the problems of the strategy, its gate and its settings."""
        yield from sharing.strategy_problems(self.strategy, gates)
        yield from sharing.mps_problems(self.strategy, self.mps_config)


class MigDeviceConfig(DeviceConfig):
    """The config of a MIG device."""

    kind: ClassVar[str] = "MigDeviceConfig"
    sharing: MigDeviceSharing | None = Field(
        default=None, description="Unset means that the MIG device is not shared."
    )

    def normalized(self, gates: FeatureGates) -> Self:
        """Return this config with the settings of its sharing strategy written out."""
        normalized = self.sharing and self.sharing.normalized(gates)
        if normalized is self.sharing:
            return self
        return self.model_copy(update={"sharing": normalized})

    @property
    def mps(self) -> MpsConfig | None:
        """The MPS settings of a normalized, valid config; None if the MIG device has no MPS."""
        if self.sharing is None or self.sharing.strategy != sharing.MPS:
            return None
        return self.sharing.mps_config or MpsConfig()

    def problems(self, gates: FeatureGates) -> tuple[Problem, ...]:
        """Return the problems of the sharing settings."""
        return tuple(self.sharing.problems(gates)) if self.sharing else ()
