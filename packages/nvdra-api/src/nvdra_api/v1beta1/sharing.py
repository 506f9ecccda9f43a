# SPDX-License-Identifier: Apache-2.0
"""Settings for sharing one GPU or MIG device between several containers.

Source: docs/reference/api-types.md, "GpuSharing, TimeSlicingConfig and MpsConfig", "Quantities and
MPS memory limits".
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, get_args

from pydantic import Field, StrictBool, StrictInt, StrictStr

from nvdra_api.errors import Reason
from nvdra_api.gates import Feature, FeatureGates
from nvdra_api.quantity import Quantity
from nvdra_api.v1beta1.device_config import ConfigModel
from nvdra_api.validation import Problem

TIME_SLICING: Final = "TimeSlicing"
MPS: Final = "MPS"
STRATEGIES: Final = {TIME_SLICING: Feature.TIME_SLICING, MPS: Feature.MPS}
"""The feature gate that each strategy requires."""
Interval = Literal["Default", "Short", "Medium", "Long"]
INTERVALS: Final[tuple[Interval, ...]] = get_args(Interval)
"""The time slices, in the order of nvidia-smi's numbers."""


class InvalidDeviceSelectorError(ValueError):
    """A memory limit is for a device that the claim does not have."""


class InvalidLimitError(ValueError):
    """A memory limit is below what the MPS control daemon accepts."""


MAX_DEVICE_LIMITS: Final = 32
"""How many devices the API server allows in one claim."""
_DEVICE_KEY: Final = re.compile(r"0|[1-9][0-9]*|(GPU|MIG)-.+")
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")
_MAX_VALUE: Final = 2**63 - 1
_PERCENTAGE: Final = "write a whole number from 0 to 100"


class TimeSlicingConfig(ConfigModel):
    """Settings of the strategy TimeSlicing."""

    interval: StrictStr | None = Field(
        default=None,
        description="How long a process may use the GPU before the next one; unset means Default.",
        json_schema_extra={"enum": [*INTERVALS, None]},
    )


class MpsConfig(ConfigModel):
    """Settings of the strategy MPS, the CUDA Multi-Process Service."""

    default_active_thread_percentage: StrictInt | None = Field(
        default=None,
        description="Share of the GPU's threads that each client may use.",
        json_schema_extra={"minimum": 0, "maximum": 100},
    )
    default_pinned_device_memory_limit: Quantity | None = Field(
        default=None, description="Memory limit of each client on every device of the claim."
    )
    default_per_device_pinned_memory_limit: dict[StrictStr, Quantity] | None = Field(
        default=None,
        description="Memory limit of each client for single devices. A key is a device UUID, or "
        "the index of a device in the sorted UUIDs of the claim's devices.",
    )
    multi_user: StrictBool | None = Field(
        default=None, description="Whether clients of several users may share the GPU."
    )

    def problems(self, path: str) -> Iterator[Problem]:
        """Yield everything that is invalid whatever the devices are."""
        percentage = self.default_active_thread_percentage
        at = f"{path}.defaultActiveThreadPercentage"
        if percentage is not None and percentage < 0:
            yield Problem(at, "active thread percentage must not be negative", remedy=_PERCENTAGE)
        if percentage is not None and percentage > 100:
            text = "active thread percentage must not be greater than 100"
            yield Problem(at, text, remedy=_PERCENTAGE)
        limit = self.default_pinned_device_memory_limit
        if limit is not None and mps_limit_megabytes(limit) < 1:
            yield Problem(
                f"{path}.defaultPinnedDeviceMemoryLimit",
                f"invalid limit: default value set too low: {limit}, the minimum is 1Mi",
            )
        per_device = self.default_per_device_pinned_memory_limit or {}
        if len(per_device) > MAX_DEVICE_LIMITS:
            yield Problem(
                f"{path}.defaultPerDevicePinnedMemoryLimit",
                f"there are limits for {len(per_device)} devices, a claim has at most "
                f"{MAX_DEVICE_LIMITS}",
            )
            return
        for key, limit in per_device.items():
            at = f"{path}.defaultPerDevicePinnedMemoryLimit.{key}"
            if not _DEVICE_KEY.fullmatch(key):
                text = f'invalid device: "{key}" is neither an index nor a UUID'
                yield Problem(at, text, remedy="write 0, 1, … or a UUID such as GPU-…")
            if mps_limit_megabytes(limit) < 1:
                yield Problem(
                    at, f"invalid limit: value set too low: {key}: {limit}, the minimum is 1Mi"
                )


def mps_limit_megabytes(limit: Quantity) -> int:
    """Return the number that the MPS control daemon is given, with the suffix `M`.

    A value below 1 is not a valid limit (docs/reference/api-types.md, "Conversion to mega units").
    """
    value = min(-(-limit.amount.numerator // limit.amount.denominator), _MAX_VALUE)
    return max(value, 0) // 1024 // 1024


def mps_limits(
    uuids: Sequence[str], default: Quantity | None, per_device: Mapping[str, Quantity]
) -> dict[str, int]:
    """Return the memory limit of each device that has one, in the daemon's mega units.

    Args:
        uuids: The devices that share one daemon. An index counts in this order: sort it.
        default: The limit of every device that has none of its own.
        per_device: Limits by UUID, or by index from 0.

    Raises:
        InvalidDeviceSelectorError: A key means none of the devices, or two keys mean the same.
        InvalidLimitError: A limit is below 1Mi.

    Source: docs/reference/api-types.md, "Quantities and MPS memory limits".
    """
    limits: dict[str, int] = {}
    if default is not None and uuids:
        limits = dict.fromkeys(uuids, _limit("default value set too low", default))
    chosen: dict[str, str] = {}
    for key, limit in per_device.items():
        uuid = _selected_device(key, uuids)
        if uuid in chosen:
            raise InvalidDeviceSelectorError(
                f"invalid device: device selected twice: {chosen[uuid]} and {key}"
            )
        chosen[uuid] = key
        limits[uuid] = _limit(f"value set too low: {key}", limit)
    return limits


def _selected_device(key: str, uuids: Sequence[str]) -> str:
    if key in uuids:
        return key
    if not _INDEX.fullmatch(key):
        raise InvalidDeviceSelectorError(
            f"invalid device: {key} is neither the UUID of a device of the claim nor an index"
        )
    if int(key) >= len(uuids):
        raise InvalidDeviceSelectorError(
            f"invalid device: invalid device index: {key}, the claim has {len(uuids)} such devices"
        )
    return uuids[int(key)]


def _limit(problem: str, limit: Quantity) -> int:
    megabytes = mps_limit_megabytes(limit)
    if megabytes < 1:
        raise InvalidLimitError(f"invalid limit: {problem}: {limit}, the minimum is 1Mi")
    return megabytes


def strategy_problems(strategy: str, gates: FeatureGates) -> Iterator[Problem]:
    """Yield a problem if the strategy is unknown, or its feature not available or disabled."""
    if strategy not in STRATEGIES:
        yield Problem(
            "sharing.strategy",
            f"unknown GPU sharing strategy: {strategy}, "
            f"supported GPU sharing strategies: {', '.join(STRATEGIES)}",
        )
    elif not gates.is_available(STRATEGIES[strategy]):
        yield Problem(
            "sharing.strategy",
            f"{strategy} is not available in this version of the driver: remove `sharing`, several "
            "containers and pods may use one claim without it",
        )
    elif not gates.is_enabled(STRATEGIES[strategy]):
        yield Problem(
            "sharing.strategy",
            f'"{strategy}" is selected as the GPU sharing strategy, but the '
            f'"{STRATEGIES[strategy]}" feature gate is not enabled',
            Reason.FEATURE_GATE_DISABLED,
            "remove `sharing`, or ask the administrator to enable the feature gate",
        )


def mps_problems(strategy: str, config: MpsConfig | None) -> Iterator[Problem]:
    """Yield the problems of `sharing.mpsConfig`."""
    if config is None:
        return
    if strategy == TIME_SLICING:
        yield Problem(
            "sharing.mpsConfig",
            f"cannot use MpsConfig with the '{TIME_SLICING}' strategy",
            remedy=f"remove mpsConfig, or set `strategy: {MPS}`",
        )
    yield from config.problems("sharing.mpsConfig")
