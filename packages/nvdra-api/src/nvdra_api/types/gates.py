"""Feature gates: the reference's names, stages and defaults, how they are written, what composes.

One value, `Gates`, is handed to whatever depends on a gate; there is no registry to change.

The reference refuses five pairs at start-up. Three of its rules about hardware and both about
health checks (`DynamicMIG` with `PassthroughSupport`, `NVMLDeviceHealthCheck` or `MPSSupport`,
`PassthroughSupport` with `NVMLDeviceHealthCheck`) are not ours: such uses exclude each other on one
board at most, which prepare and admission decide per device (design.md, "Gates compose"). What is
left are the two gates that mean nothing without another: `ComputeDomainCliques`, whose members find
each other by DNS name, and `DeviceMetadata`, which describes passed-through devices.

Source: spec/api-and-webhook.md §6, spec/gpu-devices.md §3.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Stage(StrEnum):
    """How far a feature is; decides which aggregate gate sets it."""

    ALPHA = "ALPHA"
    BETA = "BETA"


class Feature(StrEnum):
    """Every gate, by the name users write."""

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
class Gate:
    """What a gate is while nobody sets it.

    Attributes:
        stage: Alpha or beta.
        default: On or off.
        since: Minor release of the reference driver that brought it; "" for Kubernetes' own.
    """

    stage: Stage
    default: bool
    since: str


GATES: Final[Mapping[Feature, Gate]] = MappingProxyType(
    {
        Feature.TIME_SLICING: Gate(Stage.ALPHA, default=False, since="0.2"),
        Feature.MPS: Gate(Stage.ALPHA, default=False, since="0.2"),
        Feature.IMEX_DNS_NAMES: Gate(Stage.BETA, default=True, since="0.2"),
        Feature.PASSTHROUGH: Gate(Stage.ALPHA, default=False, since="0.3"),
        Feature.DYNAMIC_MIG: Gate(Stage.ALPHA, default=False, since="0.3"),
        Feature.HEALTH_CHECK: Gate(Stage.ALPHA, default=False, since="0.3"),
        Feature.CLIQUES: Gate(Stage.BETA, default=True, since="0.3"),
        Feature.CRASH_ON_FABRIC_ERRORS: Gate(Stage.BETA, default=True, since="0.3"),
        Feature.DEVICE_METADATA: Gate(Stage.ALPHA, default=False, since="0.4"),
        Feature.LIST_ATTRIBUTES: Gate(Stage.ALPHA, default=False, since="0.4"),
        Feature.FABRIC_PARTITIONING: Gate(Stage.ALPHA, default=False, since="0.5"),
        Feature.HOST_MANAGED_IMEX: Gate(Stage.ALPHA, default=False, since="0.5"),
        Feature.CONSUMABLE_SHARES: Gate(Stage.ALPHA, default=False, since="0.5"),
        Feature.CONTEXTUAL_LOGGING: Gate(Stage.BETA, default=True, since=""),
        Feature.LOGGING_ALPHA: Gate(Stage.ALPHA, default=False, since=""),
        Feature.LOGGING_BETA: Gate(Stage.BETA, default=True, since=""),
    }
)

AGGREGATES: Final[Mapping[str, Stage]] = MappingProxyType(
    {"AllAlpha": Stage.ALPHA, "AllBeta": Stage.BETA}
)
"""Each sets the gates of its stage that nothing has set before."""

_REQUIRES: Final = (
    (Feature.CLIQUES, Feature.IMEX_DNS_NAMES),
    (Feature.DEVICE_METADATA, Feature.PASSTHROUGH),
)
_TRUE: Final = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE: Final = frozenset(("0", "f", "F", "FALSE", "false", "False"))


class GateError(ValueError):
    """A text that sets gates cannot be understood; nothing of it was applied."""


@dataclass(frozen=True, slots=True)
class Gates:
    """Which features are on: what was set, over the defaults.

    `Gates.parse("MPSSupport=true").is_on(Feature.MPS)`

    Attributes:
        explicit: What was set, aggregates included. `ContextualLogging` counts as set from the
            start, as in the reference, so that `AllBeta=false` leaves it on.
    """

    explicit: Mapping[str, bool] = field(
        default_factory=lambda: {str(Feature.CONTEXTUAL_LOGGING): True}
    )

    @classmethod
    def parse(cls, text: str) -> "Gates":
        """The defaults and what `A=true,B=false` sets on top."""
        return cls().merged(text)

    def merged(self, text: str) -> "Gates":
        """What was set before and what `text` sets on top, gate by gate.

        Within one text a gate named beats `AllAlpha` and `AllBeta` in either order; an aggregate
        leaves alone what an earlier text has set, also through an aggregate.

        Raises:
            GateError: with the API machinery's own sentences, which users know.
        """
        given = dict(_items(text))
        for name in given:
            if name not in GATES and name not in AGGREGATES:
                raise GateError(f"unrecognized feature gate: {name}")
        merged = {**self.explicit, **given}
        for aggregate, stage in AGGREGATES.items():
            if aggregate in given:
                for feature, gate in GATES.items():
                    if gate.stage is stage:
                        merged.setdefault(feature, given[aggregate])
        return Gates(merged)

    def is_on(self, feature: Feature) -> bool:
        """Whether the feature may be used."""
        return self.explicit.get(feature, GATES[feature].default)

    def as_map(self) -> dict[str, bool]:
        """Every gate and both aggregates, sorted by name: for the log."""
        gates = {str(feature): self.is_on(feature) for feature in GATES}
        aggregates = {name: self.explicit.get(name, False) for name in AGGREGATES}
        return dict(sorted({**gates, **aggregates}.items()))

    def explicit_text(self) -> str:
        """What was set, as it can be written on a command line."""
        return ",".join(f"{name}={str(on).lower()}" for name, on in sorted(self.explicit.items()))

    def problems(self) -> tuple[str, ...]:
        """Every rule between gates that is broken; none of them is about what a board can do."""
        return tuple(
            f"feature gate {gate} requires {needed} to also be enabled"
            for gate, needed in _REQUIRES
            if self.is_on(gate) and not self.is_on(needed)
        )

    @staticmethod
    def help_lines() -> tuple[str, ...]:
        """One line per gate, sorted: `Name=true|false (ALPHA - default=false)`."""
        stages = {name: (stage, False) for name, stage in AGGREGATES.items()}
        stages |= {str(feature): (gate.stage, gate.default) for feature, gate in GATES.items()}
        return tuple(
            f"{name}=true|false ({stage} - default={str(default).lower()})"
            for name, (stage, default) in sorted(stages.items())
        )


def _items(text: str) -> Iterator[tuple[str, bool]]:
    for item in text.split(","):
        if not item:
            continue
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise GateError(f"missing bool value for {name}")
        if value not in _TRUE | _FALSE:
            raise GateError(
                f'invalid value of {name}={value}, err: strconv.ParseBool: parsing "{value}": '
                "invalid syntax"
            )
        yield name, value in _TRUE
