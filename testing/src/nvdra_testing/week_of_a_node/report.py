# SPDX-License-Identifier: Apache-2.0
"""The report of a week: a table for people, and JSON for comparisons."""

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from nvdra_testing.week_of_a_node.verdict import QUIET_S, Cause, Judgement

MOST_SHOWN = 20

LET_GO_EARLY = "let go by the kubelet before the container of a force-deleted pod had ended"


@dataclass
class Week:
    """What a week was, and what was wrong with it.

    Attributes:
        seed: Draws it again.
        seconds: How long it took.
        pods: The number of pods by kind.
        causes: What happened.
        judgements: All waits.
        told: In how many pods' Warnings each reason was.
        lost: Claims whose pods had not, or no longer, what they were given.
        doubled: GPUs that two pods had at one time.
        stuck: Waits that lasted although nothing kept the pod, or the node.
        unexplained: Waits that nobody explained.
        groundless: Warnings whose cause was not there.
        left_over: What was left on a node or in the API at the end.
        let_go_early: GPUs that the kubelet unprepared while a pod that was deleted by force still
            ended: no fault of the driver, which is told that nobody uses them.
    """

    seed: int
    seconds: float = 0.0
    pods: Counter[str] = field(default_factory=Counter)
    causes: list[Cause] = field(default_factory=list)
    judgements: list[Judgement] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    groundless: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    let_go_early: list[str] = field(default_factory=list)

    @property
    def problems(self) -> dict[str, list[str]]:
        """What must be empty, by the word for it."""
        return {
            "lost": self.lost,
            "doubled": self.doubled,
            "stuck": self.stuck,
            "unexplained": self.unexplained,
            "groundless": self.groundless,
            "left over": self.left_over,
        }


def as_json(week: Week) -> str:
    """The figures of the tables, and every problem."""
    document = {
        "seed": week.seed,
        "seconds": round(week.seconds),
        "pods": dict(sorted(week.pods.items())),
        "incidents": _incidents(week.causes),
        "waits": _waits(week.judgements),
        "told": dict(sorted(week.told.items())),
        "longest": [
            {
                "pod": each.wait.pod,
                "node": each.wait.node,
                "stage": each.wait.stage,
                "seconds": round(each.wait.seconds),
                "told": [
                    f"+{told.at - each.wait.began:.0f} s {told.text}" for told in each.wait.told
                ],
            }
            for each in sorted(week.judgements, key=lambda each: -each.wait.seconds)[:MOST_SHOWN]
        ],
        "problems": week.problems,
        LET_GO_EARLY: week.let_go_early,
        "causes": [
            {**dataclasses.asdict(cause), "reasons": sorted(cause.reasons)} for cause in week.causes
        ],
    }
    return json.dumps(document, indent=1)


def as_markdown(week: Week) -> str:
    """The tables of a week."""
    counts = ", ".join(f"{number} {kind}" for kind, number in sorted(week.pods.items()))
    verdict = ", ".join(f"{len(found)} {word}" for word, found in week.problems.items())
    lines = [
        "# A week of two nodes",
        "",
        f"Seed {week.seed}, {sum(week.pods.values())} pods in {week.seconds / 60:.0f} minutes: "
        f"{counts}.",
        "",
        f"**{verdict}**",
        "",
        *_table(
            ("what happened", "times", "until well, median", "longest"),
            [
                (name, row["times"], f"{row['median_s']} s", f"{row['longest_s']} s")
                for name, row in _incidents(week.causes).items()
            ],
        ),
        "",
        f"Waits of more than {QUIET_S:.0f} s, by what they were for and what explains them:",
        "",
        *_table(
            ("pods waited", "because", "times", "median", "longest"),
            [
                (row["stage"], row["because"], row["times"], f"{row['median_s']} s",
                 f"{row['longest_s']} s")
                for row in _waits(week.judgements)
            ],
        ),
    ]  # fmt: skip
    told = ", ".join(f"{reason} {number}" for reason, number in sorted(week.told.items()))
    lines += ["", f"Pods that were told a reason: {told or 'none'}."]
    for word, found in {**week.problems, LET_GO_EARLY: week.let_go_early}.items():
        if found:
            lines += ["", f"## {word[0].upper()}{word[1:]}", ""]
            lines += [f"- {each}" for each in found[:MOST_SHOWN]]
            lines += [f"- and {len(found) - MOST_SHOWN} more"] if len(found) > MOST_SHOWN else []
    return "\n".join(lines) + "\n"


def _incidents(causes: Sequence[Cause]) -> dict[str, Any]:
    took: defaultdict[str, list[float]] = defaultdict(list)
    for cause in causes:
        took[cause.kind].append(cause.over - cause.began)
    return {kind: _summary(seconds) for kind, seconds in sorted(took.items())}


def _waits(judgements: Sequence[Judgement]) -> list[dict[str, Any]]:
    took: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for each in judgements:
        if each.wait.seconds > QUIET_S:
            because = ", ".join(each.reasons) or "(nothing was told)"
            took[each.wait.stage, because].append(each.wait.seconds)
    return [
        {"stage": stage, "because": because, **_summary(seconds)}
        for (stage, because), seconds in sorted(took.items())
    ]


def _summary(seconds: list[float]) -> dict[str, Any]:
    return {
        "times": len(seconds),
        "median_s": round(median(seconds)),
        "longest_s": round(max(seconds)),
    }


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    if not rows:
        return ["(none)"]
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines]
