# SPDX-License-Identifier: Apache-2.0
"""The lifecycle of the child process, without a process."""

import math
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_imex_daemon.process import lifecycle
from nvdra_imex_daemon.process.lifecycle import (
    RESTART_BACKOFF,
    STABLE_S,
    TERMINATION_GRACE_S,
    ChildAction,
    ChildLifecycle,
    Phase,
)


def test_a_child_that_is_wanted_is_started_at_once() -> None:
    assert lifecycle.next_action(ChildLifecycle(), 0.0, is_wanted=True) is ChildAction.START
    assert lifecycle.next_action(ChildLifecycle(), 0.0, is_wanted=False) is ChildAction.NOTHING


def test_restarts_are_delayed_by_a_growing_backoff() -> None:
    life, waits = ChildLifecycle(), []
    for _ in range(9):
        life = lifecycle.ended(lifecycle.started(life, 0.0), 1.0, 0.0)
        waits.append(life.due - 1.0)
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert lifecycle.next_action(life, 30.9, is_wanted=True) is ChildAction.NOTHING
    assert lifecycle.next_action(life, 31.0, is_wanted=True) is ChildAction.START


def test_the_backoff_is_reset_after_a_stable_run() -> None:
    life = lifecycle.started(ChildLifecycle(failures=7), 100.0)
    assert lifecycle.ended(life, 100.0 + STABLE_S, 0.0).failures == 1


def test_a_failed_start_is_retried_like_a_crash() -> None:
    life = lifecycle.start_failed(lifecycle.start_failed(ChildLifecycle(), 0.0, 0.0), 5.0, 0.0)
    assert (life.phase, life.due, life.failures) == (Phase.DOWN, 5.5, 2)


def test_a_child_that_does_not_end_is_killed_well_within_the_grace_period() -> None:
    up = lifecycle.started(ChildLifecycle(), 0.0)
    assert lifecycle.next_action(up, 1.0, is_wanted=False) is ChildAction.TERMINATE
    ending = lifecycle.terminated(up, 1.0)
    assert (
        lifecycle.next_action(ending, 1.0 + TERMINATION_GRACE_S - 0.1, is_wanted=False)
        is ChildAction.NOTHING
    )
    assert (
        lifecycle.next_action(ending, 1.0 + TERMINATION_GRACE_S, is_wanted=False)
        is ChildAction.KILL
    )
    assert (
        lifecycle.next_action(lifecycle.killed(ending), 99.0, is_wanted=False)
        is ChildAction.NOTHING
    )
    assert TERMINATION_GRACE_S < 20


def test_a_stale_child_is_replaced_without_delay() -> None:
    up = lifecycle.started(ChildLifecycle(failures=3), 0.0)
    assert lifecycle.next_action(up, 1.0, is_wanted=True, is_stale=True) is ChildAction.TERMINATE
    down = lifecycle.ended(lifecycle.terminated(up, 1.0), 1.5, 0.9)
    assert lifecycle.next_action(down, 1.5, is_wanted=True) is ChildAction.START
    assert down.failures == 0


@pytest.mark.parametrize(
    ("code", "says"),
    [(0, "exit code 0"), (1, "exit code 1"), (-9, "signal SIGKILL"), (-63, "signal 63")],
)
def test_the_exit_of_a_child_is_described(code: int, says: str) -> None:
    assert lifecycle.describe_exit(code) == says


def test_signals_are_far_enough_apart_for_imex() -> None:
    first = lifecycle.signal_at(100.0, -math.inf)
    assert 100.0 < first < 101.0
    assert lifecycle.signal_at(first + 0.1, first) - first > 5.0
    assert lifecycle.signal_at(first + 60.0, first) == first + 60.0 + lifecycle.SIGNAL_DELAY_S


happenings = st.lists(
    st.tuples(
        st.sampled_from(["ends", "wanted", "unwanted", "stale", "nothing"]),
        st.floats(min_value=0.0, max_value=40.0),
        st.booleans(),
        st.floats(min_value=0.0, max_value=0.999),
    ),
    max_size=60,
)


@given(happenings)
def test_there_is_at_most_one_child_and_a_wanted_one_is_restarted(
    happened: list[tuple[str, float, bool, float]],
) -> None:
    life, now, running = ChildLifecycle(), 0.0, 0
    is_wanted = is_stale = False
    termed_at: float | None = None
    ended_at = -math.inf
    for what, later, starts, chance in happened:
        now += later
        if what == "ends" and running:
            running, termed_at, ended_at = 0, None, now
            life = lifecycle.ended(life, now, chance)
        is_wanted = {"wanted": True, "unwanted": False}.get(what, is_wanted)
        is_stale = what == "stale" and life.phase is Phase.UP
        act = lifecycle.next_action(life, now, is_wanted=is_wanted, is_stale=is_stale)
        if act is ChildAction.START:
            assert not running
            assert is_wanted
            if starts:
                life, running = lifecycle.started(life, now), 1
            else:
                life = lifecycle.start_failed(life, now, chance)
        elif act is ChildAction.TERMINATE:
            assert running
            assert is_stale or not is_wanted
            assert termed_at is None
            life, termed_at = lifecycle.terminated(life, now), now
        elif act is ChildAction.KILL:
            assert termed_at is not None
            assert now >= termed_at + TERMINATION_GRACE_S
            life = lifecycle.killed(life)
        elif is_wanted and not running:
            assert now < max(ended_at, life.since) + RESTART_BACKOFF.ceiling_s
        waits_for_time = lifecycle.next_action_at(life, is_wanted=is_wanted)
        if math.isfinite(waits_for_time):
            due: Any = lifecycle.next_action(life, waits_for_time, is_wanted=is_wanted)
            assert due is not ChildAction.NOTHING


def test_signals_are_described_by_name() -> None:
    assert lifecycle.describe_exit(-signal.SIGSEGV) == "signal SIGSEGV"
