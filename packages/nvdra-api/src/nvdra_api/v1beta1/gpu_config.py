# SPDX-License-Identifier: Apache-2.0
"""GpuConfig: the config of a whole GPU.

Source: docs/reference/api-types.md, "GpuConfig", "GpuSharing, TimeSlicingConfig and MpsConfig".
"""

from collections.abc import Iterator
from typing import ClassVar, Self

from pydantic import Field

from nvdra_api.gates import Feature, FeatureGates
from nvdra_api.v1beta1 import sharing
from nvdra_api.v1beta1.device_config import ConfigModel, DeviceConfig, NullableText
from nvdra_api.v1beta1.sharing import Interval, MpsConfig, TimeSlicingConfig
from nvdra_api.validation import Problem


class GpuSharing(ConfigModel):
    """How several containers share one GPU."""

    strategy: NullableText = Field(
        default="",
        json_schema_extra={"required": True, "enum": list(sharing.STRATEGIES)},
    )
    time_slicing_config: TimeSlicingConfig | None = None
    mps_config: MpsConfig | None = None

    def normalized(self, gates: FeatureGates) -> Self:
        """Write out the settings of the strategy if its feature gate is enabled."""
        slicing, mps = self.time_slicing_config, self.mps_config
        if slicing is not None and slicing.interval is None:
            slicing = TimeSlicingConfig(interval="Default")
        if self.strategy == sharing.TIME_SLICING and gates.is_enabled(Feature.TIME_SLICING):
            slicing = slicing or TimeSlicingConfig(interval="Default")
        if self.strategy == sharing.MPS and gates.is_enabled(Feature.MPS):
            mps = mps or MpsConfig()
        if slicing is self.time_slicing_config and mps is self.mps_config:
            return self
        return self.model_copy(update={"time_slicing_config": slicing, "mps_config": mps})

    def problems(self, gates: FeatureGates) -> Iterator[Problem]:
        """Yield the problems of the strategy, its gate and its settings.

        Settings of the other strategy are a problem, too.
        """
        yield from sharing.strategy_problems(self.strategy, gates)
        yield from sharing.mps_problems(self.strategy, self.mps_config)
        slicing = self.time_slicing_config
        if slicing is None:
            return
        if self.strategy == sharing.MPS:
            yield Problem(
                "sharing.timeSlicingConfig",
                f"cannot use TimeSlicingConfig with the '{sharing.MPS}' strategy",
                remedy="remove timeSlicingConfig, or set `strategy: TimeSlicing`",
            )
        elif slicing.interval is not None and slicing.interval not in sharing.INTERVALS:
            yield Problem(
                "sharing.timeSlicingConfig.interval",
                f"unknown time-slice interval: {slicing.interval}, "
                f"supported time-slice intervals: {', '.join(sharing.INTERVALS)}",
            )


class GpuConfig(DeviceConfig):
    """The config of a whole GPU."""

    kind: ClassVar[str] = "GpuConfig"
    sharing: GpuSharing | None = Field(
        default=None, description="Unset means that the GPU is not shared."
    )

    def normalized(self, gates: FeatureGates) -> Self:
        """Return this config with the settings of its sharing strategy written out."""
        normalized = self.sharing and self.sharing.normalized(gates)
        if normalized is self.sharing:
            return self
        return self.model_copy(update={"sharing": normalized})

    @property
    def time_slice(self) -> Interval | None:
        """The time slice of a normalized, valid config; None if the GPU is not shared by time."""
        if self.sharing is None or self.sharing.strategy != sharing.TIME_SLICING:
            return None
        slicing = self.sharing.time_slicing_config
        wanted = None if slicing is None else slicing.interval
        return next((known for known in sharing.INTERVALS if known == wanted), None)

    @property
    def mps(self) -> MpsConfig | None:
        """The MPS settings of a normalized, valid config; None if the GPU has no MPS."""
        if self.sharing is None or self.sharing.strategy != sharing.MPS:
            return None
        return self.sharing.mps_config or MpsConfig()

    def problems(self, gates: FeatureGates) -> tuple[Problem, ...]:
        """Return the problems of the sharing settings."""
        return tuple(self.sharing.problems(gates)) if self.sharing else ()
