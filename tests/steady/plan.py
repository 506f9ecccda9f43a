# SPDX-License-Identifier: Apache-2.0
"""What `make steady` runs, how often, and in which order; from values alone.

Tests that end a process or have been red run ten times, all others twice. A unit is one file in one
round, or the directory of tests whose start takes longer than most of them: end-to-end tests, which
share a cluster, and unit tests. If everything takes longer than the hours that there are, each
listed test runs three times, at least one round of every file is run, and the rest is a sample:
what has run already, and what a kept seed draws.
"""

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

LISTED_ROUNDS = 10
LEAST_ROUNDS = 3
OTHER_ROUNDS = 2
UNLISTED_ROUND = 0
"""Of a directory: its files of which no test is listed, if no sample has run all of it."""
HOURS = 8.0
SEED = 26

UNKNOWN_S = 5.0
"""Of a component test that has not run yet."""
UNKNOWN_E2E_S = 30.0
UNKNOWN_UNIT_S = 0.1
FILE_S = 8.0
"""Of the start of pytest, imports and an API server, beside four busy processes."""
CLUSTER_S = 120.0
"""Of a lab of two nodes with the driver, and of its end."""
E2E = "e2e/tests/"
ALONE = f"{E2E}lab"
"""These tests look for anything that a lab leaves on the machine."""
JUDGES = frozenset(
    f"{E2E}installation/{each}" for each in ("test_uninstalled.py", "test_used_permissions.py")
)
"""These say something of all tests of their directory, and run with them."""


Entry = tuple[int, str, Sequence[str]]
"""A round, a file or directory, and tests of it."""


@dataclass(frozen=True)
class Unit:
    """Tests of one file or directory, run once by one pytest.

    Attributes:
        path: The file or directory.
        round: Counts from 1; before them is UNLISTED_ROUND.
        tests: Names of tests without parameters; empty for the whole file.
        seconds: What it is expected to take.
    """

    path: str
    round: int
    tests: tuple[str, ...]
    seconds: float

    @property
    def is_alone(self) -> bool:
        """Whether no other unit may run at the same time."""
        return self.path.startswith(ALONE)


@dataclass(frozen=True)
class Plan:
    """Units in the order in which they run.

    Attributes:
        units: Rounds follow one another.
        left_out: Test file → how many runs of its tests the sample leaves out.
    """

    units: tuple[Unit, ...]
    left_out: Mapping[str, int]

    @property
    def seconds(self) -> float:
        """What all units take, one after another."""
        return sum(each.seconds for each in self.units)


def make(
    tests: Collection[str],
    listed: Collection[str],
    durations: Mapping[str, float],
    *,
    seconds: float,
    seed: int = SEED,
    ran: Collection[tuple[str, int]] = (),
) -> Plan:
    """Plan all runs.

    Args:
        tests: Every test, as `path::name`.
        listed: Those that end a process or have been red.
        durations: The seconds of tests that have run before.
        seconds: What the units may take together, one after another. What must run and what has
            run is planned even if it takes longer.
        seed: Draws the sample.
        ran: File or directory and round of what has run as a sample would have it run, and is
            part of any sample.
    """
    of_file: dict[str, list[str]] = {}
    for test in tests:
        of_file.setdefault(test.partition("::")[0], []).append(test)
    of_place: dict[str, list[str]] = {}
    for path, own in of_file.items():
        of_place.setdefault(place(path), []).extend(own)
    units: dict[tuple[int, str], list[str]] = {}
    for number, where, least in _least(of_file, listed, ran):
        known = units.setdefault((number, where), [])
        known += [test for test in least if test not in known]

    def cost_s(number: int, where: str, names: Iterable[str]) -> float:
        new = [test for test in names if test not in units.get((number, where), ())]
        return _tests_s(new, durations) + (0 if (number, where) in units else _start_s(where))

    left = seconds - sum(
        _start_s(where) + _tests_s(names, durations) for (_, where), names in units.items()
    )
    drawn = list(_others(of_file, listed))
    if sum(cost_s(*entry) for entry in drawn) > left:
        random.Random(seed).shuffle(drawn)
        drawn.sort(key=lambda found: (found[1], found[0]) not in ran)
    left_out: dict[str, int] = {}
    for number, where, names in drawn:
        before = units.get((number, where), [])
        new = [test for test in names if test not in before]
        cost = cost_s(number, where, names)
        if cost > left and (where, number) not in ran:
            for path in (test.partition("::")[0] for test in new):
                left_out[path] = left_out.get(path, 0) + 1
            continue
        left -= cost
        units[number, where] = [*before, *new]
    return Plan(tuple(_units(units, of_place, durations)), left_out)


def _units(
    chosen: Mapping[tuple[int, str], Collection[str]],
    of_place: Mapping[str, Sequence[str]],
    durations: Mapping[str, float],
) -> Iterator[Unit]:
    """The units of chosen tests, round by round; their tests are in the order of their files."""
    for (number, where), names in sorted(chosen.items()):
        included = set(names)
        ordered = tuple(test for test in of_place[where] if test in included)
        took = _start_s(where) + _tests_s(ordered, durations)
        is_whole = len(ordered) == len(of_place[where])
        yield Unit(where, number, () if is_whole else ordered, took)


def _least(
    of_file: Mapping[str, Sequence[str]],
    listed: Collection[str],
    ran: Collection[tuple[str, int]],
) -> Iterator[Entry]:
    """What runs however long it takes: listed tests, and of every other file one round.

    Listed tests of a directory may have run already in its first rounds, without those of its
    other files. These have a round of their own, so that it is due.
    """
    known = set(listed)
    paths = {path for path, names in of_file.items() if path in JUDGES or known.isdisjoint(names)}
    has_listed = {place(path) for path in of_file.keys() - paths}
    judged = {_directory(path) for path in paths & JUDGES}
    for path, names in sorted(of_file.items()):
        where = place(path)
        if path not in paths:
            chosen = [test for test in names if test in known]
            yield from ((number, where, chosen) for number in range(1, LEAST_ROUNDS + 1))
        elif any((where, number) in ran for number in range(1, OTHER_ROUNDS + 1)):
            continue
        elif where in judged:
            yield 1, where, _beside(path, of_file)
        else:
            yield UNLISTED_ROUND if where in has_listed else 1, where, names


def _others(of_file: Mapping[str, Sequence[str]], listed: Collection[str]) -> Iterator[Entry]:
    """What a sample is drawn from."""
    for path, names in sorted(of_file.items()):
        chosen = [test for test in names if test in listed]
        others = [test for test in names if test not in listed]
        if path in JUDGES:
            chosen, others = [], _beside(path, of_file)
        for number in range(1, LISTED_ROUNDS + 1):
            if chosen and number > LEAST_ROUNDS:
                yield number, place(path), chosen
            if others and number <= OTHER_ROUNDS:
                yield number, place(path), others


def _beside(path: str, of_file: Mapping[str, Sequence[str]]) -> list[str]:
    """All tests of the file's directory."""
    return [
        test
        for other, names in of_file.items()
        if _directory(other) == _directory(path)
        for test in names
    ]


def places(tests: Iterable[str]) -> set[str]:
    """The files and directories whose tests are units."""
    return {place(each.partition("::")[0]) for each in tests}


def place(path: str) -> str:
    """The file or directory whose units a file belongs to."""
    if path.startswith(E2E):
        return _directory(path)
    before, unit, _ = path.partition("/unit/")
    return before + unit.rstrip("/")


def _directory(path: str) -> str:
    return path.rpartition("/")[0]


def due(plan: Plan, done: Mapping[tuple[str, int], bool]) -> list[Unit]:
    """The units that have not run yet.

    Args:
        plan: All units.
        done: Path and round of those that have → whether all tests of the path ran.
    """

    def has_run(unit: Unit) -> bool:
        is_whole = done.get((unit.path, unit.round))
        return is_whole is not None and (is_whole or bool(unit.tests))

    return [each for each in plan.units if not has_run(each)]


def next_fitting(units: Sequence[Unit], seconds: float) -> Unit | None:
    """The first unit that is expected to end within this time."""
    return next((each for each in units if each.seconds <= seconds), None)


def expected_s(units: Iterable[Unit], lanes: int) -> float:
    """How long these units take on so many lanes."""
    return sum(each.seconds / (1 if each.is_alone else lanes) for each in units)


def _start_s(path: str) -> float:
    return CLUSTER_S if path.startswith(E2E) else FILE_S


def _tests_s(names: Iterable[str], durations: Mapping[str, float]) -> float:
    return sum(durations[each] if each in durations else _guess_s(each) for each in names)


def _guess_s(test: str) -> float:
    if test.startswith(E2E):
        return UNKNOWN_E2E_S
    return UNKNOWN_UNIT_S if "/unit/" in test else UNKNOWN_S
