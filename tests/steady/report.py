# SPDX-License-Identifier: Apache-2.0
"""The table of what has run and what is left."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tests.steady import plan
from tests.steady.plan import Plan
from tests.steady.records import UnitResult


def document(
    planned: Plan, results: Sequence[UnitResult], listed: Collection[str], lanes: int
) -> dict[str, Any]:
    """The state of all units, for programs.

    Args:
        planned: All units.
        results: The last result of each unit that has run.
        listed: The tests that run most often.
        lanes: How many units run at the same time.
    """
    ran = {(each.path, each.round): each for each in results}
    left = plan.due(planned, {place: each.is_whole for place, each in ran.items()})
    red = [
        {"test": test, "message": message, "round": each.round, "commit": each.commit}
        | {"started": each.started, "load": each.load}
        for each in results
        for test, message in each.red.items()
    ]
    return {
        "units": len(planned.units),
        "done": len(planned.units) - len(left),
        "left_s": round(plan.expected_s(left, lanes)),
        "ran_s": round(sum(each.seconds for each in results)),
        "listed": len(listed),
        "left_out": sum(planned.left_out.values()),
        "left_out_files": dict(sorted(planned.left_out.items())),
        "runs": sum(each.tests for each in results),
        "red": red,
        "files": _files(planned, ran, listed),
    }


def _files(
    planned: Plan,
    ran: Mapping[tuple[str, int], UnitResult],
    listed: Collection[str],
) -> list[dict[str, Any]]:
    rows = []
    left_out: dict[str, int] = {}
    for path, count in planned.left_out.items():
        left_out[plan.place(path)] = left_out.get(plan.place(path), 0) + count
    for path in sorted({*left_out, *(each.path for each in planned.units)}):
        rounds = [each.round for each in planned.units if each.path == path]
        ended = [ran[path, number] for number in rounds if (path, number) in ran]
        rows.append(
            {
                "file": path,
                "rounds": len(rounds),
                "done": len(ended),
                "runs": sum(each.tests for each in ended),
                "listed": sum(plan.place(each.partition("::")[0]) == path for each in listed),
                "left_out": left_out.get(path, 0),
                "red": sum(len(each.red) for each in ended),
                "seconds": round(sum(each.seconds for each in ended)),
            }
        )
    return rows


def text(found: Mapping[str, Any]) -> str:
    """The state as a page that is also Markdown."""
    lines = [
        "| file | rounds | runs of tests | left out | listed | red | seconds |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row['file']} | {row['done']} of {row['rounds']} | {row['runs']} | {row['left_out']} "
        f"| {row['listed']} | {row['red']} | {row['seconds']} |"
        for row in found["files"]
    ]
    lines += ["", summary(found)]
    if found["left_out"]:
        lines.append(
            f"The sample leaves out {found['left_out']} runs of tests of "
            f"{len(found['left_out_files'])} test files; how many of each is in table.json."
        )
    for row in found["red"]:
        lines.append(
            f"✗ {row['test']} (round {row['round']}, {row['commit'][:8]}, {row['started']}, "
            f"load {row['load']}): {row['message']}"
        )
    return "\n".join(lines) + "\n"


def summary(found: Mapping[str, Any]) -> str:
    """One line."""
    return (
        f"{found['done']} of {found['units']} units, {found['runs']} runs of tests "
        f"({found['listed']} listed) in {hours(found['ran_s'])}, {len(found['red'])} red; "
        f"about {hours(found['left_s'])} left"
    )


def hours(seconds: float) -> str:
    """Hours and minutes."""
    return f"{int(seconds // 3600)}:{int(seconds % 3600 // 60):02d} h"
