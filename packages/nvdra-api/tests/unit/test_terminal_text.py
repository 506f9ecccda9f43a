# SPDX-License-Identifier: Apache-2.0
"""Nothing that a tenant wrote reaches a terminal as anything but visible characters."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api import terminal_text

ANY = st.text(st.characters(exclude_categories=()))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, with spaces", "plain, with spaces"),
        ("Größe 数 🙂 العربية", "Größe 数 🙂 العربية"),
        ("\x1b[31mred\x1b]0;title\x07", r"\u001b[31mred\u001b]0;title\u0007"),
        ("\x9b31m", r"\u009b31m"),
        ("a\tb\r\nc", r"a\tb\r\nc"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\u2066x\u2069\u200f\u061c", r"\u2066x\u2069\u200f\u061c"),
        ("\u2028", r"\u2028"),
        ("\ud800", r"\ud800"),
        ("\U000e0001", r"\udb40\udc01"),
        ("\x7f", r"\u007f"),
    ],
)
def test_what_is_not_visible_is_written_as_in_json(text: str, shown: str) -> None:
    assert terminal_text.line(text) == shown


@given(ANY)
def test_a_line_is_one_line_of_characters_that_can_be_seen(text: str) -> None:
    shown = terminal_text.line(text)
    assert all(unicodedata.category(each)[0] != "C" for each in shown)
    assert len(shown.splitlines()) <= 1
    shown.encode()


@given(ANY)
def test_lines_keep_the_ends_of_lines_and_nothing_else(text: str) -> None:
    shown = terminal_text.lines(text)
    assert shown.count("\n") == text.count("\n")
    assert shown.split("\n") == [terminal_text.line(each) for each in text.split("\n")]


@given(st.recursive(ANY, lambda inner: st.lists(inner) | st.dictionaries(ANY, inner)))
def test_json_stays_the_same_document(document: object) -> None:
    for indent in (None, 2):
        text = json.dumps(document, ensure_ascii=False, indent=indent)
        assert json.loads(terminal_text.lines(text)) == document
