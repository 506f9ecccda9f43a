# SPDX-License-Identifier: Apache-2.0
"""Feature gates: names, stages, defaults, the syntax of `--feature-gates`, and dependencies.

`FeatureGates` is an immutable value. Code that depends on a gate takes it as an argument; there is
no global registry.

The reference driver refuses six combinations of gates at start-up. This driver allows five of
them. In four, the features exclude each other on a single GPU at most, which is decided for each
device: `DynamicMIG` with `PassthroughSupport`, `NVMLDeviceHealthCheck` or `MPSSupport`, and
`PassthroughSupport` with `NVMLDeviceHealthCheck`. The fifth is `DeviceMetadata` without
`PassthroughSupport`: here it describes every device. One remains, because a gate has no effect
without the gate that it requires: `ComputeDomainCliques`, whose members find each other by DNS
name.

Source: docs/reference/api-types.md, "Feature gates", docs/reference/gpu-devices.md, "Feature
gates".
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Stage(StrEnum):
    """Maturity of a feature. It decides which of `AllAlpha` and `AllBeta` sets the gate."""

    ALPHA = "ALPHA"
    BETA = "BETA"


class Feature(StrEnum):
    """Every feature gate, with the name that users write."""

    TIME_SLICING = "TimeSlicingSettings"
    MPS = "MPSSupport"
    IMEX_DNS_NAMES = "IMEXDaemonsWithDNSNames"
    PASSTHROUGH = "PassthroughSupport"
    DYNAMIC_MIG = "DynamicMIG"
    HEALTH_CHECK = "NVMLDeviceHealthCheck"
    CLIQUES = "ComputeDomainCliques"
    CRASH_ON_FABRIC_ERRORS = "CrashOnNVLinkFabricErrors"
    DEVICE_METADATA = "DeviceMetadata"
    LIST_ATTRIBUTES = "DRAListTypeAttributes"
    FABRIC_PARTITIONING = "FabricManagerPartitioning"
    HOST_MANAGED_IMEX = "HostManagedIMEXDaemon"
    CONSUMABLE_SHARES = "ConsumableShares"
    CONTEXTUAL_LOGGING = "ContextualLogging"
    LOGGING_ALPHA = "LoggingAlphaOptions"
    LOGGING_BETA = "LoggingBetaOptions"


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """The stage and the default of a feature gate.

    Attributes:
        stage: Alpha or beta.
        default: Whether the feature is enabled by default.
        since: Minor release of the reference driver that introduced the gate. Empty for gates that
            Kubernetes components have in common.
    """

    stage: Stage
    default: bool
    since: str


KNOWN_FEATURES: Final[Mapping[Feature, FeatureSpec]] = MappingProxyType(
    {
        Feature.TIME_SLICING: FeatureSpec(Stage.ALPHA, default=False, since="0.2"),
        Feature.MPS: FeatureSpec(Stage.ALPHA, default=False, since="0.2"),
        Feature.IMEX_DNS_NAMES: FeatureSpec(Stage.BETA, default=True, since="0.2"),
        Feature.PASSTHROUGH: FeatureSpec(Stage.ALPHA, default=False, since="0.3"),
        Feature.DYNAMIC_MIG: FeatureSpec(Stage.ALPHA, default=False, since="0.3"),
        Feature.HEALTH_CHECK: FeatureSpec(Stage.ALPHA, default=False, since="0.3"),
        Feature.CLIQUES: FeatureSpec(Stage.BETA, default=True, since="0.3"),
        Feature.CRASH_ON_FABRIC_ERRORS: FeatureSpec(Stage.BETA, default=True, since="0.3"),
        Feature.DEVICE_METADATA: FeatureSpec(Stage.ALPHA, default=False, since="0.4"),
        Feature.LIST_ATTRIBUTES: FeatureSpec(Stage.ALPHA, default=False, since="0.4"),
        Feature.FABRIC_PARTITIONING: FeatureSpec(Stage.ALPHA, default=False, since="0.5"),
        Feature.HOST_MANAGED_IMEX: FeatureSpec(Stage.ALPHA, default=False, since="0.5"),
        Feature.CONSUMABLE_SHARES: FeatureSpec(Stage.ALPHA, default=False, since="0.5"),
        Feature.CONTEXTUAL_LOGGING: FeatureSpec(Stage.BETA, default=True, since=""),
        Feature.LOGGING_ALPHA: FeatureSpec(Stage.ALPHA, default=False, since=""),
        Feature.LOGGING_BETA: FeatureSpec(Stage.BETA, default=True, since=""),
    }
)

UNAVAILABLE_FEATURES: Final = frozenset({Feature.FABRIC_PARTITIONING, Feature.LOGGING_ALPHA})
"""What the reference driver has behind a gate and this version lacks, at prepare and so at
admission."""

AGGREGATES: Final[Mapping[str, Stage]] = MappingProxyType(
    {"AllAlpha": Stage.ALPHA, "AllBeta": Stage.BETA}
)
"""Names that set every gate of a stage that is not set explicitly."""

_REQUIRES: Final = ((Feature.CLIQUES, Feature.IMEX_DNS_NAMES),)
_TRUE: Final = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE: Final = frozenset(("0", "f", "F", "FALSE", "false", "False"))


class FeatureGateError(ValueError):
    """A feature gate text is invalid. None of its settings was applied."""


@dataclass(frozen=True, slots=True)
class FeatureGates:
    """The features that are enabled: the explicit settings and, for all others, the defaults.

    Example: `FeatureGates.parse("MPSSupport=true").is_enabled(Feature.MPS)`.

    Attributes:
        explicit: The explicit settings, including aggregates. `ContextualLogging` is set from the
            start, as in the reference driver, so that `AllBeta=false` does not disable it.
        unavailable: Features that this release of the component lacks; their gates have no effect.
    """

    explicit: Mapping[str, bool] = field(
        default_factory=lambda: {str(Feature.CONTEXTUAL_LOGGING): True}
    )
    unavailable: Set[Feature] = frozenset()

    @classmethod
    def parse(cls, text: str) -> "FeatureGates":
        """Return the gates for a text such as `A=true,B=false`.

        Raises:
            FeatureGateError: The text is invalid.
        """
        return cls().merged(text)

    @classmethod
    def parse_known(cls, text: str) -> "FeatureGates":
        """Return the gates for a text of another release, without those that are not known here.

        Raises:
            FeatureGateError: The text is invalid.
        """
        known = {
            name: on for name, on in _settings(text) if name in KNOWN_FEATURES or name in AGGREGATES
        }
        return cls.parse(",".join(f"{name}={str(on).lower()}" for name, on in known.items()))

    def merged(self, text: str) -> "FeatureGates":
        """Return these gates with the settings of `text` on top, gate by gate.

        Within one text, a gate that is named takes precedence over `AllAlpha` and `AllBeta` in
        either order. An aggregate does not change a gate that an earlier text set, even if that
        text set it through an aggregate.

        Raises:
            FeatureGateError: The text is invalid. The error texts are those of Kubernetes
            components.
        """
        given = dict(_settings(text))
        for name in given:
            if name not in KNOWN_FEATURES and name not in AGGREGATES:
                raise FeatureGateError(f"unrecognized feature gate: {name}")
        merged = {**self.explicit, **given}
        for aggregate, stage in AGGREGATES.items():
            if aggregate in given:
                for feature, spec in KNOWN_FEATURES.items():
                    if spec.stage is stage:
                        merged.setdefault(feature, given[aggregate])
        return replace(self, explicit=merged)

    def without(self, features: Set[Feature]) -> "FeatureGates":
        """Return these gates for a release that lacks these features, too."""
        return replace(self, unavailable=frozenset(self.unavailable | features))

    def is_available(self, feature: Feature) -> bool:
        """Return whether the release has a feature, so that its gate can enable it."""
        return feature not in self.unavailable

    def is_enabled(self, feature: Feature) -> bool:
        """Return whether a feature is available and its gate is on."""
        return self.is_available(feature) and self._is_on(feature)

    def without_effect(self) -> tuple[Feature, ...]:
        """Return the gates that are enabled for features that the release lacks, by name."""
        return tuple(
            feature
            for feature in sorted(self.unavailable)
            if self._is_on(feature) and not KNOWN_FEATURES[feature].default
        )

    def as_map(self) -> dict[str, bool]:
        """Return how every gate and both aggregates are set, sorted by name."""
        gates = {str(feature): self._is_on(feature) for feature in KNOWN_FEATURES}
        aggregates = {name: self.explicit.get(name, False) for name in AGGREGATES}
        return dict(sorted({**gates, **aggregates}.items()))

    def full_text(self) -> str:
        """Return every gate and both aggregates as the controller gives them to daemons."""
        return "".join(f"{name}={str(on).lower()}," for name, on in self.as_map().items())

    def explicit_text(self) -> str:
        """Return the explicit settings in the syntax of `--feature-gates`."""
        return ",".join(f"{name}={str(on).lower()}" for name, on in sorted(self.explicit.items()))

    def problems(self) -> tuple[str, ...]:
        """Return a text for each enabled gate that requires a disabled one."""
        return tuple(
            f"feature gate {feature} requires {required} to also be enabled"
            for feature, required in _REQUIRES
            if self._is_on(feature) and not self._is_on(required)
        )

    def _is_on(self, feature: Feature) -> bool:
        return self.explicit.get(feature, KNOWN_FEATURES[feature].default)

    @staticmethod
    def help_lines() -> tuple[str, ...]:
        """Return a sorted line for each gate: `Name=true|false (ALPHA - default=false)`."""
        rows = {name: (stage, False) for name, stage in AGGREGATES.items()}
        rows |= {
            str(feature): (spec.stage, spec.default) for feature, spec in KNOWN_FEATURES.items()
        }
        return tuple(
            f"{name}=true|false ({stage} - default={str(default).lower()})"
            for name, (stage, default) in sorted(rows.items())
        )


def _settings(text: str) -> Iterator[tuple[str, bool]]:
    for setting in text.split(","):
        if not setting:
            continue
        name, equals, value = (part.strip() for part in setting.partition("="))
        if not equals:
            raise FeatureGateError(f"missing bool value for {name}")
        if value not in _TRUE | _FALSE:
            raise FeatureGateError(
                f'invalid value of {name}={value}, err: strconv.ParseBool: parsing "{value}": '
                "invalid syntax"
            )
        yield name, value in _TRUE
