# SPDX-License-Identifier: Apache-2.0
"""The report: how many documents there are for what, and where the two sides differ on purpose."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from cdi_corpus import differences
from cdi_corpus.comparison import Compared
from cdi_corpus.corpus import SEED
from cdi_corpus.table import FIELDS, RULES
from cdi_corpus.tally import Tally
from cdi_corpus.verdicts import VALID

PLACE = Path(__file__).parent / "REPORT.md"
_HEAD = f"""# nvdra-cdi beside the reference library

Made by `python -m cdi_corpus` in `packages/nvdra-cdi/tests`, with the seed `{SEED}`; a component
test fails when it is stale. Both sides were asked for every document below: whether it is valid,
which rule it breaks first, which version it needs. Each one that both take was saved by us as YAML,
and as JSON with its lowest version, and meant the same to the reference library. What is not equal
is in the last table; anything else fails the component tests.
"""


def written(compared: Sequence[Compared], tallies: Iterable[Tally]) -> str:
    """The report."""
    given = list(tallies)
    lines = [
        _HEAD,
        *_summary(compared, given),
        *_subjects(compared),
        *_differences(compared, given),
    ]
    return "\n".join(lines) + "\n"


def _summary(compared: Sequence[Compared], tallies: list[Tally]) -> Iterator[str]:
    kinds = {
        "rule": "documents for a rule",
        "field": "documents for a field",
        "notation": "notations, by hand",
        "mixture": "documents that mix everything",
    }
    yield "| asked | times | of them valid |"
    yield "|---|---|---|"
    for kind, what in kinds.items():
        chosen = [each for each in compared if each.document.kind == kind]
        valid = sum(each.ours.verdict == VALID for each in chosen)
        yield f"| {what} | {len(chosen)} | {valid} |"
    valid = sum(each.ours.verdict == VALID for each in compared)
    yield f"| **all documents** | **{len(compared)}** | **{valid}** |"
    for tally in tallies:
        for what, times in sorted(tally.asked.items()):
            yield f"| {what} | {times} | |"
    yield ""


def _subjects(compared: Sequence[Compared]) -> Iterator[str]:
    good, bad = Counter[str](), Counter[str]()
    for each in compared:
        if (case := each.document.case) is not None:
            is_good = case.is_valid if case.is_writable is None else case.is_writable
            (good if is_good else bad)[case.subject] += 1
    yield "## Fields, docs/reference/cdi.md §1\n"
    yield "| § | field | right | wrong | all |"
    yield "|---|---|---|---|---|"
    for field in FIELDS:
        right, wrong = good[field.name], bad[field.name]
        yield f"| {field.section} | `{field.name}` | {right} | {wrong} | {right + wrong} |"
    yield "\n## Rules, docs/reference/cdi.md §4\n"
    yield "What breaks a rule of ours, beyond the standard, is read and not written.\n"
    yield "| § | rule | says | kept | broken | all |"
    yield "|---|---|---|---|---|---|"
    for rule in RULES:
        kept, broken = good[rule.name], bad[rule.name]
        says = f"{rule.name}: {rule.says}"
        whose = "ours" if rule.is_extra else "the standard's"
        yield f"| {rule.section} | {whose} | {says} | {kept} | {broken} | {kept + broken} |"
    yield ""


def _differences(compared: Sequence[Compared], tallies: list[Tally]) -> Iterator[str]:
    met = Counter[str]()
    for each in compared:
        met.update(each.explained)
        met.update({name for why in each.unwritable.values() for name in why})
    for tally in tallies:
        met.update(tally.explained)
    yield "## Intended differences\n"
    yield "| about | what | met | the reference library 1.1.1 | nvdra-cdi | why (§: cdi.md) |"
    yield "|---|---|---|---|---|---|"
    for found in differences.EVERY:
        sides = f"{found.reference} | {found.ours} | {found.reason}"
        yield f"| {found.about} | {found.name} | {met[found.name]} | {sides} |"
