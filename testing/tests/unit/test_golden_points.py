# SPDX-License-Identifier: Apache-2.0
"""Recordings are compared with the golden list of calls."""

import pytest
from nvdra_testing.crash_campaigns import golden_points
from nvdra_testing.crash_campaigns.points import KillPoint

GOLDEN = golden_points.parse(
    "# prepare\nwrite cdi/a 2\nrename cdi/a to cdi/b 1\nsendto API server *\n"
)
USUAL = [
    KillPoint("sendto", "API server", 1),
    KillPoint("write", "cdi/a", 1),
    KillPoint("write", "cdi/a", 2),
    KillPoint("rename", "cdi/a to cdi/b", 1),
]


def test_a_recording_with_the_same_calls_does_not_differ() -> None:
    more_requests = [*USUAL, KillPoint("sendto", "API server", 2)]
    assert GOLDEN.differences("prepare", [USUAL, more_requests]) == []


def test_a_new_call_and_one_that_is_no_longer_made_are_named() -> None:
    changed = [*USUAL[:3], KillPoint("link", "cdi/a to cdi/b", 1)]
    assert GOLDEN.differences("prepare", [changed, changed]) == [
        "new: link cdi/a to cdi/b *",
        "no longer made: rename cdi/a to cdi/b *",
    ]


def test_another_count_is_named() -> None:
    fewer = [USUAL[0], USUAL[1], USUAL[3]]
    assert GOLDEN.differences("prepare", [fewer, fewer]) == ["made [1] times: write cdi/a 2"]


def test_a_call_that_only_one_recording_has_is_made_by_chance() -> None:
    by_chance = [*USUAL, KillPoint("unlink", "dra.sock", 1)]
    assert GOLDEN.differences("prepare", [USUAL, by_chance]) == []


def test_a_recording_is_written_in_the_form_of_the_list() -> None:
    text = golden_points.text_of("prepare", USUAL)
    assert golden_points.parse(text).operations == GOLDEN.operations


@pytest.mark.parametrize("name", ["gpu_plugin", "cd_plugin", "controller", "imex_daemon"])
def test_the_lists_of_the_repository_can_be_read(name: str) -> None:
    assert len(golden_points.load(name).operations) > 3
