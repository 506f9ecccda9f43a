# SPDX-License-Identifier: Apache-2.0
"""Values as YAML, read and written as helm does.

The charts' tests compare it with helm itself.
"""

from typing import Any

import pytest
import yaml
from nvdra_migrate.values_text import MAX_CHARACTERS, Reader, ValuesFileError, write


def read(text: str) -> Any:
    return Reader().values(text)


@pytest.mark.parametrize("value", ["1:" * 3_000 + "1", " 1:" * 2_000 + "1"])
@pytest.mark.parametrize("written", ["!!int '{}'", "!!float '{}'", '!!int "{}"'])
def test_a_number_has_a_bound_however_it_is_written(written: str, value: str) -> None:
    with pytest.raises(ValuesFileError, match="more than 4300 digits"):
        read(f"a: {written.format(value)}\n")


def test_a_text_may_look_like_a_number() -> None:
    assert read(f"a: '{'1' * 5_000}'\n") == {"a": "1" * 5_000}


def test_what_is_no_map_holds_no_values() -> None:
    assert read("") == read("# nothing\n") == read("---\n") == {}
    with pytest.raises(ValuesFileError, match="a map, not list"):
        read("- a\n")


@pytest.mark.parametrize("title", ["USER-SUPPLIED VALUES:", "COMPUTED VALUES:  "])
def test_the_title_of_helm_get_values_is_no_value(title: str) -> None:
    assert read(f"{title}\nnull\n") == read(f"{title}\n{{}}\n") == read(title) == {}
    assert read(f"{title}\na: 1\n") == {"a": 1}
    assert read(f"a: 1\n{title}\n") == {"a": 1, title.strip().rstrip(":"): None}


def test_each_document_is_read_and_values_are_the_first() -> None:
    assert Reader().documents("---\na: 1\n---\n- b\n") == [{"a": 1}, ["b"]]
    assert read("a: 1\n---\nb: 2\n") == {"a": 1}


def test_of_the_same_key_the_last_value_counts_as_in_helm() -> None:
    assert read("{a: 1, a: 2}") == {"a": 2}
    assert read("x: &x {p: 1}\nbelow: {<<: *x, p: 2}\nabove: {p: 2, <<: *x}\n") == {
        "x": {"p": 1},
        "below": {"p": 2},
        "above": {"p": 1},
    }
    assert read("{<<: [{p: 1}, {p: 2, q: 3}]}") == {"p": 1, "q": 3}


def test_keys_are_texts_as_in_json() -> None:
    assert read("{yes: a, 017: b, 1.50: c, 2026-08-01: d}") == {
        "true": "a",
        "15": "b",
        "1.5": "c",
        "2026-08-01": "d",
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{~: 1}", "no text"),
        ("{[a]: 1}", "no text"),
        ("{18446744073709551615: 1}", "no text"),
        ("a: .inf", "no number that JSON has"),
        ("a: .NaN", "no number that JSON has"),
        ("a: !!int yes", "is no int"),
        ("a: !!float x", "is no float"),
        ("a: !!binary '=x'", "no text in base64"),
        ("a: {<<: 3}", "a map, or a list of maps"),
        ("a: !secret x", "the tag !secret has no meaning"),
        ("a: !!set {x}", "the tag tag:yaml.org,2002:set has no meaning"),
    ],
)
def test_what_helm_refuses_and_tags_of_other_tools_are_errors(text: str, reason: str) -> None:
    with pytest.raises(ValuesFileError, match=reason):
        read(text)


def test_aliases_count_for_all_that_they_stand_for() -> None:
    half = MAX_CHARACTERS // 10
    with pytest.raises(ValuesFileError, match="more than 4194304 characters"):
        read(f"a: [&a {'x' * half}, {', '.join(['*a'] * 10)}]\n")


def test_the_bounds_are_for_all_texts_of_a_reader() -> None:
    text = f"a: [&a [{'x, ' * 1_000}], {'*a, ' * 20}]"
    reader = Reader()
    reader.values(text)
    with pytest.raises(ValuesFileError, match="more than 30000 values"):
        reader.values(text)


def test_the_same_value_is_written_in_full_each_time() -> None:
    shared = {"x": ["y"]}
    text = write({"a": shared, "b": shared})
    assert "&" not in text
    assert yaml.safe_load(text) == {"a": shared, "b": shared}


@pytest.mark.parametrize("text", ["08", "y", "0o17", "1e3", "1_0", "NO", "~", "0b-1", "2026-01-01"])
def test_a_text_stays_a_text(text: str) -> None:
    assert read(write({text: text})) == {text: text}


def test_what_a_terminal_would_obey_is_escaped() -> None:
    text = write({"a": "\x1b[2J", "b": "\u202e"})
    assert text.isascii()
    assert read(text) == {"a": "\x1b[2J", "b": "\u202e"}
