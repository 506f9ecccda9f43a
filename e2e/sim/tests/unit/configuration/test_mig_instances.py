# SPDX-License-Identifier: Apache-2.0
from collections.abc import Mapping, Sequence
from math import ceil, floor

import pytest
from nvdra_sim.configuration import hardware_catalog, node_config
from nvdra_sim.description import NodeDescription
from nvdra_sim.errors import ConfigError

BOARDS = {
    key: (model, hardware_catalog.mig_tables()[model.mig_table])
    for key, model in hardware_catalog.gpu_models().items()
    if model.mig_table is not None
}
SUFFIXES = {
    "+me": (7, 8),
    "+gfx": (10, 11, 12),
    "-me": (13, 14),
    "+me.all": (15, 16),
}
WORDS = {enum: suffix for suffix, enums in SUFFIXES.items() for enum in enums}


@pytest.mark.parametrize("board", BOARDS)
def test_every_profile_name_follows_from_its_memory(board: str) -> None:
    model, table = BOARDS[board]
    for profile in table.profiles:
        eighths = ceil(8 * profile.memory_mib / model.memory_mib) / 8
        gigabytes = floor(eighths * ceil(model.memory_mib / 1024) + 0.5)
        suffix = WORDS.get(profile.enum, "")
        assert profile.name == f"{profile.slices}g.{gigabytes}gb{suffix}"


@pytest.mark.parametrize("board", BOARDS)
def test_every_placement_lies_within_the_board(board: str) -> None:
    _, table = BOARDS[board]
    for profile in table.profiles:
        assert profile.slices <= table.compute_slices
        assert len(profile.placement_starts) >= profile.max_instances
        for start in profile.placement_starts:
            assert 0 <= start <= table.memory_slices - profile.placement_size


@pytest.mark.parametrize("board", BOARDS)
def test_ids_and_enums_are_unique_on_a_board(board: str) -> None:
    _, table = BOARDS[board]
    for numbers in ([one.id for one in table.profiles], [one.enum for one in table.profiles]):
        assert len(set(numbers)) == len(numbers)
    assert 17 not in {one.enum for one in table.profiles}


@pytest.mark.parametrize("board", BOARDS)
def test_a_profile_can_be_made_as_often_as_its_maximum_says(board: str) -> None:
    _, table = BOARDS[board]
    for profile in table.profiles:
        starts = _apart(profile.placement_starts, profile.placement_size)[: profile.max_instances]
        node = _node(board, [{"profile": profile.name, "start": start} for start in starts])
        assert node.gpus[0].mig is not None
        assert [one.start for one in node.gpus[0].mig.instances] == starts


@pytest.mark.parametrize(
    ("instances", "problem"),
    [
        ([("9g.90gb", 0)], "instances.0.profile"),
        ([("3g.40gb", 2)], "instances.0.start"),
        ([("3g.40gb", 0), ("1g.10gb", 3)], "instances.1.start"),
        ([("4g.40gb", 0), ("3g.40gb", 4), ("1g.10gb", 4)], "instances.2.start"),
        ([("1g.10gb+me", 0), ("1g.10gb+me", 1)], "instances.1.profile"),
        ([("2g.20gb", 0), ("1g.20gb", 4), ("1g.10gb", 5)], "instances.2.start"),
    ],
)
def test_instances_that_cannot_be_made_in_order_are_refused(
    instances: list[tuple[str, int]], problem: str
) -> None:
    wanted = [{"profile": profile, "start": start} for profile, start in instances]
    with pytest.raises(ConfigError) as caught:
        _node("h100", wanted)
    assert [one.path for one in caught.value.problems] == [f"gpus.0.mig.{problem}"]


@pytest.mark.parametrize(
    ("compute", "accepted"),
    [
        (["3c"], True),
        (["2c", "1c"], True),
        (["1c", "2c"], False),
        (["1c", "1c", "1c"], True),
        (["2c", "2c"], False),
        (["4c"], False),
        (["c"], False),
    ],
)
def test_compute_instances_fill_at_most_their_gpu_instance(
    compute: list[str], accepted: bool
) -> None:
    wanted = [{"profile": "3g.40gb", "start": 0, "compute": compute}]
    if accepted:
        assert _node("h100", wanted).gpus[0].mig is not None
        return
    with pytest.raises(ConfigError, match="compute"):
        _node("h100", wanted)


def test_instances_need_mig_mode() -> None:
    board = {"model": "h100", "bus_id": "0000:53:00.0"}
    mig = {"mode": False, "instances": [{"profile": "7g.80gb", "start": 0}]}
    with pytest.raises(ConfigError, match="mode"):
        _load([{**board, "mig": mig}])


def _apart(starts: Sequence[int], size: int) -> list[int]:
    """Starts that leave room for each other."""
    chosen: list[int] = []
    for start in starts:
        if not chosen or start >= chosen[-1] + size:
            chosen.append(start)
    return chosen


def _node(board: str, instances: Sequence[Mapping[str, object]]) -> NodeDescription:
    mig = {"mode": True, "instances": instances}
    return _load([{"model": board, "bus_id": "0000:53:00.0", "mig": mig}])


def _load(gpus: Sequence[Mapping[str, object]]) -> NodeDescription:
    head = {"apiVersion": "nvdra.sim/v1", "kind": "Node", "metadata": {"name": "node-0"}}
    return node_config.load({**head, "gpus": gpus})
