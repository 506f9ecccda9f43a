"""The life of the child process, decided without a process."""

import math
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_imex_daemon import lifecycle
from nvdra_imex_daemon.lifecycle import CALM_S, RESTART, TERM_S, Act, Life, Phase


def test_a_child_that_is_wanted_is_started_at_once() -> None:
    assert lifecycle.act(Life(), 0.0, is_wanted=True) is Act.START
    assert lifecycle.act(Life(), 0.0, is_wanted=False) is Act.NOTHING


def test_a_crash_costs_a_quarter_of_a_second_and_the_next_ones_more() -> None:
    life, waits = Life(), []
    for _ in range(9):
        life = lifecycle.ended(lifecycle.started(life, 0.0), 1.0, 0.0)
        waits.append(life.due - 1.0)
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert lifecycle.act(life, 30.9, is_wanted=True) is Act.NOTHING
    assert lifecycle.act(life, 31.0, is_wanted=True) is Act.START


def test_a_child_that_has_worked_for_a_while_begins_anew() -> None:
    life = lifecycle.started(Life(failures=7), 100.0)
    assert lifecycle.ended(life, 100.0 + CALM_S, 0.0).failures == 1


def test_a_child_that_cannot_be_started_is_tried_as_one_that_crashes() -> None:
    life = lifecycle.refused(lifecycle.refused(Life(), 0.0, 0.0), 5.0, 0.0)
    assert (life.phase, life.due, life.failures) == (Phase.DOWN, 5.5, 2)


def test_a_child_that_does_not_end_is_killed_well_within_the_grace_period() -> None:
    up = lifecycle.started(Life(), 0.0)
    assert lifecycle.act(up, 1.0, is_wanted=False) is Act.TERMINATE
    ending = lifecycle.terminated(up, 1.0)
    assert lifecycle.act(ending, 1.0 + TERM_S - 0.1, is_wanted=False) is Act.NOTHING
    assert lifecycle.act(ending, 1.0 + TERM_S, is_wanted=False) is Act.KILL
    assert lifecycle.act(lifecycle.killed(ending), 99.0, is_wanted=False) is Act.NOTHING
    assert TERM_S < 20


def test_a_stale_child_makes_way_and_its_successor_comes_at_once() -> None:
    up = lifecycle.started(Life(failures=3), 0.0)
    assert lifecycle.act(up, 1.0, is_wanted=True, is_stale=True) is Act.TERMINATE
    down = lifecycle.ended(lifecycle.terminated(up, 1.0), 1.5, 0.9)
    assert lifecycle.act(down, 1.5, is_wanted=True) is Act.START
    assert down.failures == 0


@pytest.mark.parametrize(
    ("code", "says"),
    [(0, "exit code 0"), (1, "exit code 1"), (-9, "signal SIGKILL"), (-63, "signal 63")],
)
def test_how_a_child_ended_is_told(code: int, says: str) -> None:
    assert lifecycle.end_of(code) == says


def test_signals_are_so_far_apart_that_none_is_ignored() -> None:
    first = lifecycle.signal_at(100.0, -math.inf)
    assert 100.0 < first < 101.0
    assert lifecycle.signal_at(first + 0.1, first) - first > 5.0
    assert lifecycle.signal_at(first + 60.0, first) == first + 60.0 + lifecycle.GATHER_S


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
def test_there_is_never_more_than_one_child_and_one_that_is_wanted_comes_back(
    happened: list[tuple[str, float, bool, float]],
) -> None:
    life, now, running = Life(), 0.0, 0
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
        act = lifecycle.act(life, now, is_wanted=is_wanted, is_stale=is_stale)
        if act is Act.START:
            assert not running
            assert is_wanted
            if starts:
                life, running = lifecycle.started(life, now), 1
            else:
                life = lifecycle.refused(life, now, chance)
        elif act is Act.TERMINATE:
            assert running
            assert is_stale or not is_wanted
            assert termed_at is None
            life, termed_at = lifecycle.terminated(life, now), now
        elif act is Act.KILL:
            assert termed_at is not None
            assert now >= termed_at + TERM_S
            life = lifecycle.killed(life)
        elif is_wanted and not running:
            assert now < max(ended_at, life.since) + RESTART.ceiling_s
        waits_for_time = lifecycle.next_act(life, is_wanted=is_wanted)
        if math.isfinite(waits_for_time):
            due: Any = lifecycle.act(life, waits_for_time, is_wanted=is_wanted)
            assert due is not Act.NOTHING


def test_signals_have_names_here() -> None:
    assert lifecycle.end_of(-signal.SIGSEGV) == "signal SIGSEGV"
