# SPDX-License-Identifier: Apache-2.0
"""docs/faq.md: questions, and short answers."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "faq.md").read_text()
BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
ANSWERS = dict(re.findall(r"^### ([^\n]*)\n\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE))
MAX_LINES = 6


@pytest.mark.parametrize("question", ANSWERS)
def test_a_question_has_a_short_answer(question: str) -> None:
    assert question.endswith("?")
    prose = BLOCK.sub("", ANSWERS[question]).strip()
    assert 0 < len([line for line in prose.splitlines() if line.strip()]) <= MAX_LINES


def test_the_names_that_others_join_on_are_published() -> None:
    published = (ROOT / "docs/configuration/attributes.md").read_text()
    answer = ANSWERS["Does the DCGM exporter know the pods?"]
    joined = ["type", "uuid", "parentUUID", "profile"]
    assert ", ".join(f"`{name}`" for name in joined[:-1]) + f" and `{joined[-1]}`" in answer
    assert [name for name in joined if f"\n| `{name}` |" not in published] == []
