# SPDX-License-Identifier: Apache-2.0
"""Texts of others: bounded, and valid Unicode."""

from hypothesis import given
from hypothesis import strategies as st
from nvdra_api import texts


@given(st.text(st.characters(categories=["Cs", "L", "Cc"])))
def test_every_text_can_be_encoded_and_a_valid_one_stays(text: str) -> None:
    shown = texts.encodable(text)
    assert shown.encode().decode() == shown
    try:
        text.encode()
    except UnicodeEncodeError:
        assert "\\ud" in shown
    else:
        assert shown == text


def test_a_long_text_is_cut() -> None:
    assert texts.shortened("abcdef", 6) == "abcdef"
    assert texts.shortened("abcdef", 5) == "abcde…"
