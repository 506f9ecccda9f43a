# SPDX-License-Identifier: Apache-2.0
"""The fuzzer finds faults that are planted, by generation, and says how to see them again."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from nvdra_testing.fuzzing import (
    campaign,
    case_stream,
    configs,
    documents,
    faults,
    function_target,
    go_json,
    planted,
    registry,
)
from nvdra_testing.fuzzing.faults import Kind
from nvdra_testing.fuzzing.target import Target

SEED = 1
LONG_ENOUGH_S = 60
KINDS: dict[Callable[[bytes], None], set[Kind]] = {
    planted.computes_what_a_text_says: {Kind.HANG, Kind.SLOW},
    planted.recurses: {Kind.UNEXPECTED},
    planted.encodes_what_it_has_read: {Kind.UNEXPECTED},
    planted.keeps_what_it_is_given: {Kind.MEMORY, Kind.UNEXPECTED},
    planted.ends: {Kind.DIED},
}


def target(function: Callable[[bytes], None]) -> Target:
    cases = documents.mutations([planted.VALID])
    return function_target.target(function, cases, [json.dumps(planted.VALID).encode()])


@pytest.mark.parametrize("function", planted.FAULTY, ids=lambda each: each.__name__)
def test_a_planted_fault_is_found_and_can_be_seen_again(
    function: Callable[[bytes], None], tmp_path: Path
) -> None:
    run = campaign.TargetRun(target(function), SEED, lambda _: None)
    result = run.run(LONG_ENOUGH_S, most_faults=1)
    (fault,) = result.faults
    assert fault.problem.kind in KINDS[function], fault.problem
    kept = fault.write(tmp_path, 1)
    assert faults.read_case(kept) == (fault.target, fault.case)
    again = campaign.TargetRun(target(function), SEED, lambda _: None)
    assert again.shows(fault), fault


def test_a_function_that_only_waits_has_no_fault() -> None:
    result = campaign.TargetRun(target(planted.waits), SEED, lambda _: None).run(2)
    assert result.cases
    assert not result.faults


def test_a_seed_gives_the_same_cases_again() -> None:
    def drawn(seed: str) -> list[bytes]:
        found: list[bytes] = []
        case_stream.visit_batch(documents.mutations([planted.VALID]), seed, found.append)
        return found

    assert drawn("1") == drawn("1")
    assert drawn("1") != drawn("2")


@settings(max_examples=500)
@given(documents.mutations([config for _, config in configs.VALID]))
def test_what_is_storable_is_what_python_decodes_without_its_limits(case: bytes) -> None:
    try:
        value = json.loads(
            case.decode(), parse_int=str, parse_float=str, parse_constant=lambda _: 1 / 0
        )
    except RecursionError:
        return
    except (ValueError, ZeroDivisionError):
        value = None
    assert go_json.is_storable(case) == (isinstance(value, dict) and len(case) <= 10 << 10)


def test_depth_is_no_limit_of_what_is_storable() -> None:
    def nested(depth: int) -> bytes:
        return b'{"a":' + b"[" * depth + b"]" * depth + b"}"

    assert go_json.is_storable(nested(5000))
    assert not go_json.is_storable(nested(5200))  # more than 10 KiB


def test_targets_have_names_of_their_own() -> None:
    names = [each.name for each in registry.TARGETS]
    assert len(set(names)) == len(names)
