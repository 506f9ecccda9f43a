# SPDX-License-Identifier: Apache-2.0
"""Resolves the opaque parameters of a claim to one config for each allocated device.

A config of the claim takes precedence over a config of a DeviceClass, a later config over an
earlier one, and any config over the default of its kind. A config applies to the requests that it
lists, by full name (`main/sub`) or by the name of the main request (`main`). A config that lists no
request applies to every device that its kind fits. An error names every problem with its field; a
device whose config cannot be read is not checked further, as its default says nothing about it.

Source: docs/reference/resource-claims.md, "Opaque configuration", "Configuration of prioritised
lists", "Allocation result".
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from nvdra_api import decoding
from nvdra_api.errors import PermanentError, Reason
from nvdra_api.gates import FeatureGates
from nvdra_api.resource.claims import (
    DeviceAllocationConfiguration,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from nvdra_api.v1beta1 import DeviceConfig
from nvdra_api.validation import Problem

from nvdra_runtime.claims import allocation

_OF_CLAIM: Final = "FromClaim"
_PRECEDENCE: Final = ("FromClass", _OF_CLAIM)
_PATH: Final = "status.allocation.devices.config"

ConfigKindSelector = Callable[[DeviceRequestAllocationResult], type[DeviceConfig]]
"""Returns the kind of config for the device of an allocation result."""


@dataclass(frozen=True, slots=True)
class ConfiguredResult:
    """An allocation result and the config that applies to it.

    Attributes:
        result: The allocation result.
        config: The config, normalized and valid.
        config_index: Index of the config in `status.allocation.devices.config`. Results with the
            same index are configured together. None for the default of the kind.
        is_of_claim: Whether the config stands in the claim itself.
    """

    result: DeviceRequestAllocationResult
    config: DeviceConfig
    config_index: int | None
    is_of_claim: bool = False


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of `status.allocation.devices.config`; without config if it cannot be used."""

    index: int
    requests: frozenset[str]
    config: DeviceConfig | None

    def lists(self, result: DeviceRequestAllocationResult) -> bool:
        return not self.requests.isdisjoint((result.request, result.base_request))


def resolve(
    claim: ResourceClaim, driver: str, kind_of: ConfigKindSelector, gates: FeatureGates
) -> tuple[ConfiguredResult, ...]:
    """Return the config of each device that is allocated from a driver.

    Args:
        claim: The claim.
        driver: The driver whose results and configs count.
        kind_of: Returns the kind of config for a result, or raises for an unknown device.
        gates: The feature gates.

    Returns:
        The results of the driver with their configs, in the order of the allocation.

    Raises:
        RetryableError: `NotAllocated`.
        PermanentError: `InvalidConfig`, or `FeatureGateDisabled` if a disabled feature gate is the
            only problem.
    """
    results = allocation.results(claim, driver)
    sources = [entry.source for entry in allocation.devices(claim).config or ()]
    problems: list[Problem] = []
    entries = _entries(claim, driver, problems)
    chosen = [_choose(result, kind_of(result), entries, problems) for result in results]
    configured = tuple(
        ConfiguredResult(
            result,
            choice[0].normalized(gates),
            choice[1],
            is_of_claim=choice[1] is not None and sources[choice[1]] == _OF_CLAIM,
        )
        for result, choice in zip(results, chosen, strict=True)
        if choice is not None
    )
    problems += _config_problems(configured, gates)
    if problems:
        raise _error(claim, problems)
    return configured


def unapplied(
    claim: ResourceClaim, driver: str, configured: Sequence[ConfiguredResult]
) -> Iterator[str]:
    """Yield which configs of the claim itself apply to none of its devices, and why.

    A claim with alternatives may well have a config for each.

    Args:
        claim: A claim whose configs are valid.
        driver: The driver whose configs count.
        configured: What `resolve` has returned for it.
    """
    if any(request.first_available for request in claim.spec.devices.requests or ()):
        return
    used = {each.config_index for each in configured}
    for index, entry in enumerate(allocation.devices(claim).config or ()):
        is_ours = entry.opaque is not None and entry.opaque.driver == driver
        if index in used or not is_ours or entry.source != _OF_CLAIM:
            continue
        config = _decode(entry, driver)
        listed = _Entry(index, frozenset(entry.requests or ()), config)
        concerned = [
            each for each in configured if not listed.requests or listed.lists(each.result)
        ]
        if any(isinstance(each.config, type(config)) for each in concerned):
            continue
        why = "; ".join(
            f"{each.result.device} of request {each.result.request} takes {each.config.kind}"
            for each in concerned
        )
        yield (
            f"{_PATH}[{index}], a {config.kind}, has no effect: "
            f"{why or 'none of its requests has a device of this driver'}"
        )


def _entries(claim: ResourceClaim, driver: str, problems: list[Problem]) -> list[_Entry]:
    """Return the entries of the driver, in descending order of precedence.

    An entry of unknown source comes first: what it was meant to override is unknown.
    """
    ranked: list[tuple[int, _Entry]] = []
    for index, entry in enumerate(allocation.devices(claim).config or ()):
        if entry.opaque is not None and entry.opaque.driver != driver:
            continue
        config, rank = None, len(_PRECEDENCE)
        try:
            config = _decode(entry, driver)
        except decoding.DecodeError as error:
            text = f"error decoding config parameters: {error}"
            problems.append(Problem(_path(index), text, remedy=error.remedy))
        if entry.source in _PRECEDENCE:
            rank = _PRECEDENCE.index(entry.source)
        elif config is not None:
            text = f"invalid config source: {entry.source}, expected {' or '.join(_PRECEDENCE)}"
            problems.append(Problem(f"{_PATH}[{index}].source", text))
            config = None
        ranked.append((rank, _Entry(index, frozenset(entry.requests or ()), config)))
    return [entry for _, entry in sorted(ranked, key=lambda item: (item[0], item[1].index))][::-1]


def _decode(entry: DeviceAllocationConfiguration, driver: str) -> DeviceConfig:
    if entry.opaque is None:
        raise decoding.DecodeError("only opaque parameters are supported")
    return decoding.decode_config_value(driver, entry.opaque.parameters)


def _choose(
    result: DeviceRequestAllocationResult,
    kind: type[DeviceConfig],
    entries: Sequence[_Entry],
    problems: list[Problem],
) -> tuple[DeviceConfig, int | None] | None:
    """Return the config of a result and its index.

    None if the entry that applies, or may apply, cannot be used; its problem is known.
    """
    for entry in entries:
        applies = not entry.requests or entry.lists(result)
        if entry.config is None and applies:
            return None
        if isinstance(entry.config, kind) and applies:
            return entry.config, entry.index
        if entry.config is not None and entry.lists(result):
            text = (
                f"cannot apply {entry.config.kind} to device {result.device} of request "
                f"{result.request}, which needs {kind.kind}"
            )
            problems.append(Problem(_path(entry.index), text))
            return None
    return kind(), None


def _config_problems(
    configured: Sequence[ConfiguredResult], gates: FeatureGates
) -> Iterator[Problem]:
    """Yield the problems of the configs, once for each config."""
    seen: set[int | str] = set()
    for item in configured:
        key = item.config.kind if item.config_index is None else item.config_index
        if key in seen:
            continue
        seen.add(key)
        path = (
            f"default of {item.result.device}"
            if item.config_index is None
            else _path(item.config_index)
        )
        for problem in item.config.problems(gates):
            field = f"{path}.{problem.field}" if problem.field else path
            yield Problem(field, problem.text, problem.reason, problem.remedy)


def _error(claim: ResourceClaim, problems: Sequence[Problem]) -> PermanentError:
    texts = "; ".join(f"{problem.field}: {problem.advice}" for problem in problems)
    only_gates = all(problem.reason is Reason.FEATURE_GATE_DISABLED for problem in problems)
    remedy = (
        "correct the config in the ResourceClaimTemplate, or in the DeviceClass, and delete the "
        "pod: the next one gets a new claim"
        if claim.is_made_for_pod
        else "correct the config, which may be that of the DeviceClass, and create the claim anew"
    )
    if only_gates:
        remedy = (
            "ask the administrator to enable the feature gate (if it was enabled just now, wait "
            f"until the plugin of this node is replaced: the pod is tried again), or {remedy}"
        )
    return PermanentError(
        Reason.FEATURE_GATE_DISABLED if only_gates else Reason.INVALID_CONFIG,
        f"claim {claim.ref} cannot be configured: {texts}",
        remedy,
        claim=str(claim.ref),
        field=problems[0].field,
    )


def _path(index: int) -> str:
    return f"{_PATH}[{index}].opaque.parameters"
