"""Opaque parameters of a claim → the one config that is in force for each of our results.

A config from the claim beats one from a class, a later one an earlier one, and every one beats the
kind's default. It is in force for the requests that it lists, by full name (`main/sub`) or by the
main one (`main`); one that lists none is in force wherever its kind fits. All that is wrong is told
at once, by field.

Source: spec/gpu-prepare.md §12, §26.28; spec/kubelet-dra-protocol.md §4.1.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from nvdra_api.protocol import allocation, decoding
from nvdra_api.types.claims import DeviceConfig, DeviceResult, ResourceClaim
from nvdra_api.types.configs import KINDS, DriverConfig, Problem
from nvdra_api.types.errors import PermanentError, Reason
from nvdra_api.types.gates import Gates

_PRECEDENCE: Final = ("FromClass", "FromClaim")
_PATH: Final = "status.allocation.devices.config"

KindOf = Callable[[DeviceResult], type[DriverConfig]]
"""Which kind of config fits a result's device."""


@dataclass(frozen=True, slots=True)
class Configured:
    """One of our results and what is in force for it.

    Attributes:
        result: As the scheduler decided.
        config: Normalised and valid.
        entry: Its place in `status.allocation.devices.config`: results with the same one are
            configured together; None for the kind's default.
    """

    result: DeviceResult
    config: DriverConfig
    entry: int | None


@dataclass(frozen=True, slots=True)
class _Entry:
    index: int
    requests: frozenset[str]
    config: DriverConfig

    def lists(self, result: DeviceResult) -> bool:
        return not self.requests.isdisjoint((result.request, result.base_request))


def resolve(
    claim: ResourceClaim, driver: str, kind_of: KindOf, gates: Gates
) -> tuple[Configured, ...]:
    """The config of each of our results, in the order of the allocation.

    Args:
        claim: As the API server returned it.
        driver: Whose results and configs count.
        kind_of: Which kind fits a result's device; it may refuse a device it does not know.
        gates: What may be used.

    Raises:
        RetryableError: `NotAllocated`.
        PermanentError: `InvalidConfig`, or `FeatureGateDisabled` if only gates are in the way.
    """
    ours = allocation.results(claim, driver)
    problems: list[Problem] = []
    entries = _entries(claim, driver, problems)
    chosen = [_choose(result, kind_of(result), entries, problems) for result in ours]
    configured = tuple(
        Configured(result, config.normalized(gates), index)
        for result, (config, index) in zip(ours, chosen, strict=True)
    )
    problems += _invalid(configured, gates)
    if problems:
        raise _refused(claim, problems)
    return configured


def _entries(claim: ResourceClaim, driver: str, problems: list[Problem]) -> list[_Entry]:
    """Our configs, decoded, those with the highest precedence first."""
    decoded: list[tuple[int, _Entry]] = []
    for index, entry in enumerate(allocation.devices(claim).config or ()):
        try:
            config = _decoded(entry, driver)
        except decoding.DecodeError as error:
            problems.append(Problem(_at(index), f"error decoding config parameters: {error}"))
            continue
        if config is None:
            continue
        if entry.source not in _PRECEDENCE:
            text = f"invalid config source: {entry.source}, expected {' or '.join(_PRECEDENCE)}"
            problems.append(Problem(f"{_PATH}[{index}].source", text))
            continue
        rank = _PRECEDENCE.index(entry.source)
        decoded.append((rank, _Entry(index, frozenset(entry.requests or ()), config)))
    return [entry for _, entry in sorted(decoded, key=lambda item: (item[0], item[1].index))][::-1]


def _decoded(entry: DeviceConfig, driver: str) -> DriverConfig | None:
    """The config of an entry, None where it is another driver's."""
    if entry.opaque is None:
        raise decoding.DecodeError("only opaque parameters are supported")
    if entry.opaque.driver != driver:
        return None
    config = decoding.decode_value(entry.opaque.parameters, strict=True)
    if not isinstance(config, KINDS[driver]):
        kinds = ", ".join(kind.kind for kind in KINDS[driver])
        raise decoding.DecodeError(f"a {config.kind} is not for {driver}, which takes {kinds}")
    return config


def _choose(
    result: DeviceResult,
    kind: type[DriverConfig],
    entries: Sequence[_Entry],
    problems: list[Problem],
) -> tuple[DriverConfig, int | None]:
    for entry in entries:
        fits = isinstance(entry.config, kind)
        if fits and (not entry.requests or entry.lists(result)):
            return entry.config, entry.index
        if entry.lists(result):
            text = (
                f"cannot apply {entry.config.kind} to device {result.device} of request "
                f"{result.request}, which takes {kind.kind}"
            )
            problems.append(Problem(_at(entry.index), text))
            break
    return kind(), None


def _invalid(configured: Sequence[Configured], gates: Gates) -> Iterator[Problem]:
    """What is wrong with the configs in force, each told once."""
    told: set[int | str] = set()
    for item in configured:
        key = item.config.kind if item.entry is None else item.entry
        if key in told:
            continue
        told.add(key)
        at = f"default of {item.result.device}" if item.entry is None else _at(item.entry)
        for problem in item.config.problems(gates):
            where = f"{at}.{problem.field}" if problem.field else at
            yield Problem(where, problem.text, problem.reason)


def _refused(claim: ResourceClaim, problems: Sequence[Problem]) -> PermanentError:
    texts = "; ".join(f"{problem.field}: {problem.text}" for problem in problems)
    only_gates = all(problem.reason is Reason.FEATURE_GATE_DISABLED for problem in problems)
    remedy = (
        "let the administrator enable the feature gate, or remove the setting and make a new claim"
        if only_gates
        else "correct the config where it was written, in the claim, its template or its class, "
        "and make a new claim"
    )
    return PermanentError(
        Reason.FEATURE_GATE_DISABLED if only_gates else Reason.INVALID_CONFIG,
        f"claim {claim.ref} cannot be configured: {texts}",
        remedy,
        claim=str(claim.ref),
        field=problems[0].field,
    )


def _at(index: int) -> str:
    return f"{_PATH}[{index}].opaque.parameters"
