# SPDX-License-Identifier: Apache-2.0
"""The plan of `make steady`, and which tests it finds to end a process."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.steady import plan, process_ends, records, report, runner
from tests.steady.plan import Unit
from tests.steady.records import UnitResult

A, B, C = "a/test_a.py::test_ends", "a/test_a.py::test_stays", "b/test_b.py::test_other"
DURATIONS = {A: 10.0, B: 1.0, C: 2.0}
HOUR_S = 3600.0


def rounds(planned: plan.Plan, test: str) -> int:
    path = test.partition("::")[0]
    return sum(
        each.path == path and (not each.tests or test in each.tests) for each in planned.units
    )


def test_a_listed_test_runs_ten_times_and_any_other_twice() -> None:
    planned = plan.make([A, B, C], {A}, DURATIONS, seconds=HOUR_S)
    assert [rounds(planned, each) for each in (A, B, C)] == [10, 2, 2]
    assert planned.left_out == {}


def test_what_judges_the_tests_of_its_directory_runs_with_them() -> None:
    judge = f"{min(plan.JUDGES)}::test_judge"
    other = f"{plan.E2E}installation/test_other.py::test_other"
    planned = plan.make([A, judge, other], {other}, DURATIONS, seconds=HOUR_S)
    found = {each.round: each.tests for each in planned.units if "installation" in each.path}
    assert [found[number] for number in (1, 2, 3)] == [(), (), (other,)]


def test_rounds_follow_one_another_and_a_file_runs_once_in_each() -> None:
    planned = plan.make([A, B, C], {A}, DURATIONS, seconds=HOUR_S)
    order = [(each.round, each.path) for each in planned.units]
    assert order == sorted(set(order))
    assert planned.units[0].tests == ()
    assert planned.units[-1].tests == (A,)


def test_where_time_is_short_a_sample_is_drawn_and_listed_tests_run_three_times() -> None:
    tests = [f"{x}/test_{x}.py::test_{y}" for x in "abcdefgh" for y in "mn"]
    listed = {each for each in tests if each.endswith("_m")}
    durations = dict.fromkeys(tests, 10.0)
    least = plan.make(tests, listed, durations, seconds=0)
    assert {rounds(least, each) for each in listed} == {3}
    some = plan.make(tests, listed, durations, seconds=least.seconds + 200, seed=1)
    assert least.seconds < some.seconds <= least.seconds + 200
    assert min(rounds(some, each) for each in listed) == 3
    assert sum(some.left_out.values()) > 0
    assert some == plan.make(tests, listed, durations, seconds=least.seconds + 200, seed=1)
    assert some != plan.make(tests, listed, durations, seconds=least.seconds + 200, seed=2)


def test_what_has_run_is_part_of_a_sample_however_long_it_takes() -> None:
    tests = [f"{x}/test_{x}.py::test_{x}" for x in "abcdefgh"]
    ran = {("c/test_c.py", 2), ("h/test_h.py", 1), ("h/test_h.py", 2)}
    durations = dict.fromkeys(tests, 10.0)
    for seed in range(9):
        some = plan.make(tests, (), durations, seconds=200, seed=seed, ran=ran)
        assert len(some.units) == 11
        assert ran < {(each.path, each.round) for each in some.units}
    least = plan.make(tests, (), durations, seconds=0, ran=ran)
    assert ran < {(each.path, each.round) for each in least.units}


def test_of_every_file_one_round_is_run_and_the_rest_is_left_out() -> None:
    durations = {A: 10.0, B: 1.0, C: 2.0}
    least = plan.make([A, B, C], {A}, durations, seconds=0)
    assert [rounds(least, each) for each in (A, B, C)] == [3, 0, 1]
    assert least.left_out == {"a/test_a.py": 9, "b/test_b.py": 1}
    ran = {("b/test_b.py", 2)}
    again = plan.make([A, B, C], {A}, durations, seconds=0, ran=ran)
    assert [each.round for each in again.units if each.path == "b/test_b.py"] == [2]


def test_files_without_listed_tests_are_due_in_a_directory_whose_listed_tests_have_run() -> None:
    tests = [f"e2e/tests/gpus/test_{x}.py::test_{y}" for x in "ab" for y in "nm"]
    planned = plan.make(tests, set(tests[:2]), dict.fromkeys(tests, 30.0), seconds=0)
    done = {("e2e/tests/gpus", number): False for number in (1, 2, 3)}
    (unit,) = plan.due(planned, done)
    assert (unit.round, unit.tests) == (plan.UNLISTED_ROUND, tuple(tests[2:]))
    assert plan.due(planned, {**done, ("e2e/tests/gpus", plan.UNLISTED_ROUND): False}) == []


def test_a_judge_runs_once_with_all_tests_of_its_directory() -> None:
    judge = f"{min(plan.JUDGES)}::test_judge"
    other = f"{plan.E2E}installation/test_other.py::test_other"
    least = plan.make([judge, other], {other}, {}, seconds=0)
    assert [(each.round, each.tests) for each in least.units] == [
        *((1, ()), (2, (other,)), (3, (other,))),
    ]


def test_a_slice_takes_what_ends_in_time_and_goes_on_after_what_is_done() -> None:
    planned = plan.make([A, B, C], {A}, DURATIONS, seconds=HOUR_S)
    first = planned.units[0]
    left = plan.due(planned, {(first.path, first.round): True})
    assert first not in left
    assert len(left) == len(planned.units) - 1
    assert first in plan.due(planned, {(first.path, first.round): False})
    assert plan.next_fitting(left, 12) == Unit("b/test_b.py", 1, (), 10.0)
    assert plan.next_fitting(left, 1) is None


def test_tests_whose_start_takes_long_share_it() -> None:
    tests = [f"e2e/tests/gpus/test_{x}.py::test_{y}" for x in "ab" for y in "nm"]
    unit = "packages/a/tests/unit/claims/test_a.py::test_m"
    durations = dict.fromkeys([*tests, unit], 30.0)
    planned = plan.make([*tests, unit], set(tests[::2]), durations, seconds=HOUR_S * 9)
    found = {(each.path, each.round): each.tests for each in planned.units}
    assert found == {
        **{("e2e/tests/gpus", number): () for number in (1, 2)},
        **{("e2e/tests/gpus", number): tuple(tests[::2]) for number in range(3, 11)},
        **{("packages/a/tests/unit", number): () for number in (1, 2)},
    }


def test_of_a_directory_that_is_not_run_as_a_whole_tests_keep_their_order() -> None:
    tests = [f"e2e/tests/gpus/test_a.py::test_{y}" for y in "nml"]
    planned = plan.make(tests, set(tests[:2]), dict.fromkeys(tests, 30.0), seconds=HOUR_S)
    assert planned.units[-1].tests == tuple(tests[:2])


def test_the_tests_of_the_lab_run_alone() -> None:
    units = [Unit("e2e/tests/lab/test_lab.py", 1, (), 60.0), Unit("a/test_a.py", 1, (), 60.0)]
    assert [each.is_alone for each in units] == [True, False]
    assert plan.expected_s(units, lanes=2) == 90


def test_a_test_that_ends_a_process_is_found_through_the_harness() -> None:
    harness = "testing/src/nvdra_testing"
    sources = {
        f"{harness}/rig.py": "class Rig:\n    def stop(self): self.process.send_signal(9)\n",
        f"{harness}/other.py": "def stop(): pass\n",
        f"{harness}/running.py": (
            "def run():\n    p = start()\n    try:\n        yield p\n"
            "    finally:\n        p.kill()\n"
        ),
        "p/tests/conftest.py": "def rig():\n    yield Rig()\n    os.kill(1, 9)\n",
        "p/tests/test_p.py": (
            "from nvdra_testing import rig, running\n"
            "def test_direct():\n    os.kill(1, 9)\n"
            "def test_by_the_rig(rig):\n    rig.stop()\n"
            "def test_by_a_function(rig):\n    gone(rig)\n"
            "def gone(rig):\n    rig.stop()\n"
            "def test_restart(kubectl):\n    kubectl.run('rollout', 'restart', 'x')\n"
            "def test_in_a_thread(rig):\n    to_thread(gone, rig)\n"
            "def test_that_only_uses_it():\n    with running.run() as p:\n        assert p\n"
        ),
        "q/tests/test_q.py": "from nvdra_testing import other\ndef test_q():\n    other.stop()\n",
    }
    found = process_ends.find(sources)
    assert [each.partition("::")[2] for each in found] == [
        *("test_direct", "test_by_the_rig", "test_by_a_function"),
        *("test_restart", "test_in_a_thread"),
    ]
    assert found["p/tests/test_p.py::test_by_a_function"] == "gone → stop → send_signal"


@pytest.fixture(scope="module")
def sources() -> Mapping[str, str]:
    return process_ends.read()


def test_tests_that_are_known_to_end_a_process_are_found(sources: Mapping[str, str]) -> None:
    found = process_ends.find(sources)
    known = (
        "packages/nvdra-cd-plugin/tests/component/test_restart.py"
        "::test_the_member_span_of_an_interrupted_wait_is_written_when_it_ends",
        "e2e/tests/members/test_killed_daemons.py::",
        "e2e/tests/lab/test_killed_lab.py::",
        "packages/nvdra-gpu-plugin/tests/component/test_crash_campaign.py::",
    )
    assert [each for each in known if not any(test.startswith(each) for test in found)] == []


def test_every_crash_campaign_is_found(sources: Mapping[str, str]) -> None:
    campaigns = {path for path in sources if path.endswith("/test_crash_campaign.py")}
    found = {each.partition("::")[0] for each in process_ends.find(sources)}
    assert len(campaigns) >= 4
    assert sorted(campaigns - found) == []


def test_former_failures_exist(sources: Mapping[str, str]) -> None:
    kept = records.former_failures(records.FORMER_FAILURES.read_text().splitlines())
    assert sorted(kept.keys() - set(process_ends.tests(sources))) == []
    assert [each for each, where in kept.items() if not where] == []


def test_a_result_counts_until_its_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    old = result(1, file="x", red={A: "late"})
    for each in (old, result(1, file="x"), result(2, file="old")):
        records.append(each, path)
    with path.open("a") as file:
        file.write('{"path": "cut off')
    assert records.current(records.read(path), {"a/test_a.py": "x"}) == [result(1, file="x")]


def test_durations_are_kept_so_that_a_plan_fits(tmp_path: Path) -> None:
    path = tmp_path / "durations.json"
    records.write_durations({A: 4.0}, path)
    records.write_durations({A: 2.0, B: 1.0}, path)
    assert records.read_durations(path) == {A: 3.0, B: 1.0}


def test_a_report_is_read_by_test_without_parameters(tmp_path: Path) -> None:
    path = tmp_path / "r.xml"
    path.write_text(
        "<testsuites><testsuite>"
        '<testcase file="a/test_a.py" name="test_ends[1]" time="1.5"/>'
        '<testcase file="a/test_a.py" name="test_ends[2]" time="2"><failure message="late"/>'
        '</testcase><testcase file="a/test_a.py" name="test_stays" time="0"><skipped/></testcase>'
        "</testsuite></testsuites>"
    )
    found = runner.read_report(path, 1)
    assert (found.passed, found.red) == ({A: 1}, {A: "late"})
    assert found.seconds == {A: 3.5, B: 0.0}
    assert runner.read_report(tmp_path / "none.xml", 4).red == {"pytest": "exit status 4"}


def test_the_table_says_what_is_done_left_and_red() -> None:
    planned = plan.make([A, B, C], {A}, DURATIONS, seconds=HOUR_S)
    results = [result(1), result(2, red={A: "late"})]
    found = report.document(planned, results, {A}, lanes=1)
    assert (found["units"], found["done"], found["runs"]) == (12, 2, 3)
    assert "| a/test_a.py | 2 of 10 | 3 | 0 | 1 | 1 | 24 |" in report.text(found)
    assert "| b/test_b.py | 0 of 2 | 0 | 0 | 0 | 0 | 0 |" in report.text(found)
    assert f"✗ {A} (round 2, abc, now, load 4.0): late\n" in report.text(found)


def test_the_table_says_what_the_sample_leaves_out() -> None:
    planned = plan.make([A, B, C], {A}, DURATIONS, seconds=0)
    found = report.document(planned, [], {A}, lanes=1)
    assert found["left_out_files"] == {"a/test_a.py": 9, "b/test_b.py": 1}
    assert "| b/test_b.py | 0 of 1 | 0 | 1 | 0 | 0 | 0 |" in report.text(found)
    assert "leaves out 10 runs of tests of 2 test files" in report.text(found)


def result(number: int, file: str = "x", red: dict[str, str] | None = None) -> UnitResult:
    failed = red or {}
    ran = 2 if number == 1 else len(failed)
    return UnitResult("a/test_a.py", number, file, "abc", "now", 12.0, 4.0, ran, failed)
