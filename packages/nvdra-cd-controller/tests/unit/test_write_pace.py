# SPDX-License-Identifier: Apache-2.0
"""The first write is at once, many changes share one, and the last one hardly waits."""

import itertools

import pytest
from nvdra_cd_controller.write_pace import CEILING_S, QUIET_S, WritePace


def written_at(changes: list[float], members: int, *, settled_at: float = 1e9) -> list[float]:
    """When the object is written for changes at these times."""
    pace, now, writes = WritePace(), 0.0, []
    pending = sorted(changes)
    while pending:
        now = max(now, pending[0])
        wait_s = pace.due_in_s(now, members, is_settled=now >= settled_at)
        if wait_s:
            later = [at for at in pending if at > now]
            until = min([now + wait_s, *later[:1], *([settled_at] if settled_at > now else [])])
            now = until
            if pace.due_in_s(now, members, is_settled=now >= settled_at):
                continue
        pace = pace.after_write(now)
        writes.append(now)
        pending = [at for at in pending if at > now]
    return writes


def test_a_change_after_a_pause_is_written_at_once() -> None:
    assert written_at([5.0, 5.0 + QUIET_S], 256) == [5.0, 5.0 + QUIET_S]


def test_members_that_join_within_some_seconds_share_few_writes() -> None:
    joins = [number / 50 for number in range(256)]  # within 5 s
    writes = written_at(joins, 256)
    assert len(writes) <= 8
    assert all(0 < b - a <= CEILING_S for a, b in itertools.pairwise(writes))


def test_the_last_change_waits_for_less_than_a_second() -> None:
    joins = [number / 10 for number in range(256)]
    *_, last = written_at([*joins, 30.0], 256, settled_at=30.0)
    assert last - 30.0 <= CEILING_S / 8


@pytest.mark.parametrize(("members", "longest_s"), [(1, 0.25), (2, 0.5), (4, 1.0), (18, 4.5)])
def test_small_objects_wait_for_less(members: int, longest_s: float) -> None:
    pace = WritePace(20, 100.0)
    assert pace.due_in_s(100.0, members, is_settled=False) == pytest.approx(longest_s)
