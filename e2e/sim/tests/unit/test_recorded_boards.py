# SPDX-License-Identifier: Apache-2.0
"""The simulator answers every call as real boards have answered it, but for known differences.

The differences are in `e2e/hardware/recorded/differences.yaml`, each with a reason.
"""

import json
from typing import Any

import pytest
import yaml
from nvdra_sim.native import nvml_functions
from nvdra_sim.testing.nvml_fixtures import NvmlOn

from e2e.hardware import nvml_answers, recorded_boards
from e2e.hardware.recorded_boards import NOT_SUPPORTED, RECORDED, Answer, Board

TABLE: dict[str, Any] = yaml.safe_load((RECORDED / "differences.yaml").read_text(encoding="utf-8"))
NOT_SIMULATED = {one.name for one in nvml_functions.functions() if one.tier == "C"}

Difference = tuple[Answer, Answer]
"""What was recorded, and what the simulator answers."""


@pytest.fixture(scope="module")
def listed_fields() -> set[str]:
    """The fields of the table, `74-83` written out."""
    found = set()
    for entry in map(str, TABLE["fields_not_simulated"]):
        first, _, last = entry.partition("-")
        found |= {f"field {number}" for number in range(int(first), int(last or first) + 1)}
    return found


def differences(nvml_on: NvmlOn, name: str) -> dict[str, Difference]:
    board = recorded_boards.board(name)
    simulated = simulate(nvml_on, board).answers
    recorded = board.answers
    return {
        call: (recorded.get(call, {}), simulated.get(call, {}))
        for call in sorted(recorded.keys() | simulated.keys())
        if recorded.get(call) != simulated.get(call)
    }


def simulate(nvml_on: NvmlOn, board: Board) -> Board:
    """What the simulated board answers."""
    node = nvml_on(None, initialize=False, **recorded_boards.node(board))
    with node.transaction() as now:
        now.gpus[0].persistence = board.value("nvmlDeviceGetPersistenceMode")
    made = json.loads(json.dumps(nvml_answers.record()))
    return recorded_boards.of_record(made)


@pytest.mark.parametrize("name", recorded_boards.names())
def test_the_simulator_answers_as_the_board_did(
    nvml_on: NvmlOn, name: str, listed_fields: set[str]
) -> None:
    unexplained = [
        f"{call}\n    recorded:  {json.dumps(found[0])}\n    simulated: {json.dumps(found[1])}"
        for call, found in differences(nvml_on, name).items()
        if not is_explained(call, found, listed_fields)
    ]
    assert not unexplained, f"{len(unexplained)} differences\n" + "\n".join(unexplained)


def test_every_difference_of_the_table_still_exists(
    nvml_on: NvmlOn, listed_fields: set[str]
) -> None:
    calls = {call for name in recorded_boards.names() for call in differences(nvml_on, name)}
    found = calls | {call.split()[0] for call in calls}
    listed = {*TABLE["changes_all_the_time"], *TABLE["this_machine"], *TABLE["others"]}
    assert (listed | listed_fields) - found == set()


def is_explained(call: str, found: Difference, listed_fields: set[str]) -> bool:
    recorded, simulated = found
    names = {call, call.split()[0]}
    if call in listed_fields or names & NOT_SIMULATED:
        return simulated == NOT_SUPPORTED
    if names & {*TABLE["changes_all_the_time"], *TABLE["this_machine"]}:
        return bool(shape(recorded) == shape(simulated))
    others: dict[str, dict[str, Any]] = TABLE["others"]
    entries = [others[name] for name in names & others.keys()]
    return simulated in [each["simulated"] for each in entries if each["reason"]]


def shape(value: Any) -> Any:
    """An answer with the types of numbers and texts in their place."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [shape(each) for each in value]
    return type(value)
