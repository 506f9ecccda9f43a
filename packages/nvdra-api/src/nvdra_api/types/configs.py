"""The opaque configs that users put into claims and classes (resource.nvidia.com/v1beta1).

Each kind can say what it means in full (`normalized`) and everything that is wrong with it
(`problems`); both depend on the gates, which are an argument. `protocol.decoding` makes these from
documents. Source: spec/api-and-webhook.md §3.
"""

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationInfo,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from nvdra_api.types.errors import Reason
from nvdra_api.types.gates import Feature, Gates
from nvdra_api.types.names import COMPUTE_DOMAIN_DRIVER, CONFIG_API_VERSION, GPU_DRIVER
from nvdra_api.types.quantity import Quantity

TOLERANT: Final = "tolerant"
"""Validation context key: true while reading what an older or newer release has stored."""

_TIME_SLICING: Final = "TimeSlicing"
_MPS: Final = "MPS"
_INTERVALS: Final = ("Default", "Short", "Medium", "Long")
_IOMMU_POLICIES: Final = ("LegacyOnly", "PreferIommuFD")
_ALLOCATION_MODES: Final = ("Single", "All")
_DEVICE_KEY: Final = re.compile(r"0|[1-9][0-9]*|(GPU|MIG)-.+")
_MAX_VALUE: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a config.

    Attributes:
        field: Dotted path below the config, `sharing.strategy`; "" for the config itself.
        text: What is wrong, in the reference's words where users know them.
        reason: `InvalidConfig`, or `FeatureGateDisabled` when an administrator could allow it.
    """

    field: str
    text: str
    reason: Reason = Reason.INVALID_CONFIG


def _quantity(value: Any, info: ValidationInfo) -> Quantity:
    if value is None and info.context and info.context.get(TOLERANT):
        return Quantity.decimal(0)  # what the reference reads a null as
    if isinstance(value, Quantity):
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise PydanticCustomError("quantity_type", "not a quantity")
    try:
        return Quantity.parse(value.strip(" ") if isinstance(value, str) else repr(value))
    except ValueError as error:
        raise PydanticCustomError("quantity", "{text}", {"text": str(error)}) from error


_Limit = Annotated[Quantity, PlainValidator(_quantity), PlainSerializer(str)]
_Text = Annotated[StrictStr, BeforeValidator(lambda value: "" if value is None else value)]


class _Part(BaseModel):
    """An object of a config: frozen, camelCase on the wire, JSON types not converted."""

    model_config = ConfigDict(
        frozen=True, alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )


class DriverConfig(_Part):
    """What all kinds have in common; `GpuConfig()` is the kind's default."""

    kind: ClassVar[str]

    @abstractmethod
    def normalized(self, gates: Gates) -> Self:
        """With every default written out that is in force."""

    @abstractmethod
    def problems(self, gates: Gates) -> tuple[Problem, ...]:
        """Everything that is wrong, none for a config that may be used."""

    def document(self) -> dict[str, Any]:
        """As users write it; unset fields and empty maps are left out."""
        body = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {"kind": self.kind, "apiVersion": CONFIG_API_VERSION, **body}


class TimeSlicingConfig(_Part):
    """How long one process has the GPU; unset is `Default`."""

    interval: StrictStr | None = None


class MpsConfig(_Part):
    """What each client of the MPS daemon gets; which device a key means is known at prepare."""

    default_active_thread_percentage: StrictInt | None = None
    default_pinned_device_memory_limit: _Limit | None = None
    default_per_device_pinned_memory_limit: dict[StrictStr, _Limit] | None = None
    """Key: index in the sorted UUIDs of the claim's devices, or a UUID."""
    multi_user: StrictBool | None = None

    def problems(self, path: str) -> Iterator[Problem]:
        """Everything that can be told without the devices."""
        percentage = self.default_active_thread_percentage
        at = f"{path}.defaultActiveThreadPercentage"
        if percentage is not None and percentage < 0:
            yield Problem(at, "active thread percentage must not be negative")
        if percentage is not None and percentage > 100:
            yield Problem(at, "active thread percentage must not be greater than 100")
        limit = self.default_pinned_device_memory_limit
        if limit is not None and megabytes(limit) < 1:
            yield Problem(
                f"{path}.defaultPinnedDeviceMemoryLimit",
                f"invalid limit: default value set too low: {limit}, the least is 1Mi",
            )
        for key, limit in (self.default_per_device_pinned_memory_limit or {}).items():
            at = f"{path}.defaultPerDevicePinnedMemoryLimit.{key}"
            if not _DEVICE_KEY.fullmatch(key):
                yield Problem(at, f'invalid device: "{key}" is neither an index nor a UUID')
            if megabytes(limit) < 1:
                yield Problem(
                    at, f"invalid limit: value set too low: {key}: {limit}, the least is 1Mi"
                )


class MigDeviceSharing(_Part):
    """How several containers share one MIG device; `TimeSlicing` has no effect there."""

    strategy: _Text = ""
    mps_config: MpsConfig | None = None

    def normalized(self, gates: Gates) -> Self:
        """An empty `mpsConfig` where MPS is chosen without one."""
        if self.strategy == _MPS and gates.is_on(Feature.MPS) and self.mps_config is None:
            return self.model_copy(update={"mps_config": MpsConfig()})
        return self

    def problems(self, gates: Gates) -> Iterator[Problem]:
        """Strategy, its gate, its settings."""
        yield from _strategy_problems(self.strategy, gates)
        yield from _mps_problems(self.strategy, self.mps_config)


class GpuSharing(_Part):
    """How several containers share one GPU."""

    strategy: _Text = ""
    time_slicing_config: TimeSlicingConfig | None = None
    mps_config: MpsConfig | None = None

    def normalized(self, gates: Gates) -> Self:
        """The settings of the chosen strategy written out, when its gate is on."""
        slicing, mps = self.time_slicing_config, self.mps_config
        if slicing is not None and slicing.interval is None:
            slicing = TimeSlicingConfig(interval="Default")
        if self.strategy == _TIME_SLICING and gates.is_on(Feature.TIME_SLICING):
            slicing = slicing or TimeSlicingConfig(interval="Default")
        if self.strategy == _MPS and gates.is_on(Feature.MPS):
            mps = mps or MpsConfig()
        return self.model_copy(update={"time_slicing_config": slicing, "mps_config": mps})

    def problems(self, gates: Gates) -> Iterator[Problem]:
        """Strategy, its gate, its settings; settings of the other strategy are refused."""
        yield from _strategy_problems(self.strategy, gates)
        yield from _mps_problems(self.strategy, self.mps_config)
        slicing = self.time_slicing_config
        if slicing is None:
            return
        if self.strategy == _MPS:
            yield Problem(
                "sharing.timeSlicingConfig",
                f"cannot use TimeSlicingConfig with the '{_MPS}' strategy",
            )
        elif slicing.interval is not None and slicing.interval not in _INTERVALS:
            yield Problem(
                "sharing.timeSlicingConfig.interval",
                f"unknown time-slice interval: {slicing.interval}, "
                f"supported time-slice intervals: {', '.join(_INTERVALS)}",
            )


class GpuConfig(DriverConfig):
    """For a whole GPU."""

    kind: ClassVar[str] = "GpuConfig"
    sharing: GpuSharing | None = None

    def normalized(self, gates: Gates) -> Self:
        """With the settings of its sharing strategy."""
        sharing = self.sharing and self.sharing.normalized(gates)
        return self.model_copy(update={"sharing": sharing})

    def problems(self, gates: Gates) -> tuple[Problem, ...]:
        """Those of its sharing."""
        return tuple(self.sharing.problems(gates)) if self.sharing else ()


class MigDeviceConfig(DriverConfig):
    """For a MIG device."""

    kind: ClassVar[str] = "MigDeviceConfig"
    sharing: MigDeviceSharing | None = None

    def normalized(self, gates: Gates) -> Self:
        """With the settings of its sharing strategy."""
        sharing = self.sharing and self.sharing.normalized(gates)
        return self.model_copy(update={"sharing": sharing})

    def problems(self, gates: Gates) -> tuple[Problem, ...]:
        """Those of its sharing."""
        return tuple(self.sharing.problems(gates)) if self.sharing else ()


class IommuConfig(_Part):
    """Which kernel interface passes the device through."""

    backend_policy: _Text = ""
    enable_api_device: StrictBool | None = Field(default=None, alias="enableAPIDevice")


class VfioDeviceConfig(DriverConfig):
    """For a GPU that is passed through to a virtual machine."""

    kind: ClassVar[str] = "VfioDeviceConfig"
    iommu: IommuConfig | None = None

    def normalized(self, gates: Gates) -> Self:
        """`LegacyOnly` without the API device, unless said otherwise; whatever the gates are."""
        given = self.iommu or IommuConfig()
        iommu = IommuConfig(
            backend_policy=given.backend_policy or _IOMMU_POLICIES[0],
            enable_api_device=bool(given.enable_api_device),
        )
        return self.model_copy(update={"iommu": iommu})

    def problems(self, gates: Gates) -> tuple[Problem, ...]:
        """Gate and policy."""
        return tuple(self._problems(gates))

    def _problems(self, gates: Gates) -> Iterator[Problem]:
        if not gates.is_on(Feature.PASSTHROUGH):
            yield Problem(
                "",
                f'{self.kind} requires the "{Feature.PASSTHROUGH}" feature gate',
                Reason.FEATURE_GATE_DISABLED,
            )
        policy = self.iommu.backend_policy if self.iommu else _IOMMU_POLICIES[0]
        if policy not in _IOMMU_POLICIES:
            yield Problem(
                "iommu.backendPolicy",
                f"unknown IOMMU backend policy: {policy}, "
                f"supported IOMMU backend policies: {', '.join(_IOMMU_POLICIES)}",
            )


class ComputeDomainChannelConfig(DriverConfig):
    """For an IMEX channel; written by the controller into its claim templates."""

    kind: ClassVar[str] = "ComputeDomainChannelConfig"
    domain_id: _Text = Field(default="", alias="domainID")
    allocation_mode: _Text = ""

    def normalized(self, gates: Gates) -> Self:
        """One channel, unless said otherwise."""
        mode = self.allocation_mode or _ALLOCATION_MODES[0]
        return self.model_copy(update={"allocation_mode": mode})

    def problems(self, gates: Gates) -> tuple[Problem, ...]:
        """Domain and mode; that the ID is a UID is not checked, manifests in use have others."""
        found = list(_domain_problems(self.domain_id))
        if self.allocation_mode not in ("", *_ALLOCATION_MODES):
            text = (
                f"unknown allocation mode: {self.allocation_mode}, "
                f"supported allocation modes: {', '.join(_ALLOCATION_MODES)}"
            )
            found.append(Problem("allocationMode", text))
        return tuple(found)


class ComputeDomainDaemonConfig(DriverConfig):
    """For an IMEX daemon; written by the controller into its claim templates."""

    kind: ClassVar[str] = "ComputeDomainDaemonConfig"
    domain_id: _Text = Field(default="", alias="domainID")

    def normalized(self, gates: Gates) -> Self:
        """Nothing is implied."""
        return self

    def problems(self, gates: Gates) -> tuple[Problem, ...]:
        """The domain must be named."""
        return tuple(_domain_problems(self.domain_id))


KINDS: Final[Mapping[str, tuple[type[DriverConfig], ...]]] = {
    GPU_DRIVER: (GpuConfig, MigDeviceConfig, VfioDeviceConfig),
    COMPUTE_DOMAIN_DRIVER: (ComputeDomainChannelConfig, ComputeDomainDaemonConfig),
}
"""Which kinds each driver takes; no other kind is one of ours."""


def megabytes(limit: Quantity) -> int:
    """The number that MPS is given, with an `M` behind it; below 1 it is no limit (spec §4.3)."""
    value = min(-(-limit.amount.numerator // limit.amount.denominator), _MAX_VALUE)
    return max(value, 0) // 1024 // 1024


def _strategy_problems(strategy: str, gates: Gates) -> Iterator[Problem]:
    needed = {_TIME_SLICING: Feature.TIME_SLICING, _MPS: Feature.MPS}
    if strategy not in needed:
        yield Problem(
            "sharing.strategy",
            f"unknown GPU sharing strategy: {strategy}, "
            f"supported GPU sharing strategies: {', '.join(needed)}",
        )
    elif not gates.is_on(needed[strategy]):
        yield Problem(
            "sharing.strategy",
            f'"{strategy}" is selected as the GPU sharing strategy, but the "{needed[strategy]}" '
            "feature gate is not enabled",
            Reason.FEATURE_GATE_DISABLED,
        )


def _mps_problems(strategy: str, config: MpsConfig | None) -> Iterator[Problem]:
    if config is None:
        return
    if strategy == _TIME_SLICING:
        yield Problem(
            "sharing.mpsConfig", f"cannot use MpsConfig with the '{_TIME_SLICING}' strategy"
        )
    yield from config.problems("sharing.mpsConfig")


def _domain_problems(domain_id: str) -> Iterator[Problem]:
    if not domain_id:
        yield Problem("domainID", "domainID cannot be empty")
