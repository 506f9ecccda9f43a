# SPDX-License-Identifier: Apache-2.0
"""What a controller writes is received at once; what many daemons write is read now and then."""

import pytest
from nvdra_imex_daemon.membership.read_pace import (
    COST_OF_ONE,
    FREE_CHANGES,
    ReadPace,
    interval_s,
)


def received_at(writes: list[float], interval_s: float, *, changed: int) -> list[float]:
    """When a daemon receives something, for writes at these times.

    After a pause it reads once, whatever was written meanwhile. It pauses again if something was,
    and watches if nothing was.
    """
    pace, now, received = ReadPace(), 0.0, []
    pending, is_watching = sorted(writes), True
    while pending or not is_watching:
        now = max(now, pending[0]) if is_watching else now
        known = [at for at in pending if at <= now][: 1 if is_watching else None]
        pending = pending[len(known) :]
        received.append(now)
        is_watching = True
        if known:
            pace = pace.after_change(now, interval_s, changed)
            pause_s = pace.pause_s(interval_s)
            is_watching, now = pause_s == 0, now + pause_s
    return received


def test_what_a_controller_writes_while_a_clique_forms_is_received_at_once() -> None:
    writes = [0.0, 0.1, 0.3, 0.7, 1.5, 3.1, 3.7, 8.1, 8.3]
    assert received_at(writes, interval_s(256, has_controller=True), changed=20) == writes


@pytest.mark.parametrize("members", [18, 72, 144, 256])
def test_a_daemon_receives_few_of_the_writes_of_many_and_the_last_one(members: int) -> None:
    writes = [number / 6 for number in range(2 * members)]  # for a third of a second each
    between_s = interval_s(members, has_controller=False)
    received = received_at(writes, between_s, changed=1)
    later = received[int(FREE_CHANGES / COST_OF_ONE) :]
    assert len(later) <= 4
    assert writes[-1] <= later[-1] <= writes[-1] + 2 * between_s


def test_pauses_end_when_changes_become_rare() -> None:
    pace = ReadPace()
    for _ in range(50):
        pace = pace.after_change(100.0, 10.0, 1)
    assert pace.pause_s(10.0) == 10.0
    rare = pace.after_change(130.0, 10.0, 1)
    assert rare.pause_s(10.0) == 0.0
    rested = pace.after_change(100.0 + FREE_CHANGES * 10.0, 10.0, 9)
    assert rested.free == FREE_CHANGES - 1


@pytest.mark.parametrize(
    ("members", "longest_s", "alone_s"),
    [(0, 0.25, 0.25), (2, 0.5, 0.5), (18, 4.5, 4.5), (144, 10.0, 36.0), (256, 10.0, 60.0)],
)
def test_small_objects_are_read_more_often(members: int, longest_s: float, alone_s: float) -> None:
    assert interval_s(members, has_controller=True) == longest_s
    assert interval_s(members, has_controller=False) == alone_s
