# SPDX-License-Identifier: Apache-2.0
"""Foreign JSON: what is refused, with its field, in time that grows with the length only."""

import functools
import json
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvdra_api import json_text
from nvdra_api.json_text import JsonTextError, OutOfBoundsError

LONG = "9" * 5000
DEEP = "[" * 300 + "]" * 300
LONGEST = 3 << 20
"""The longest body that reaches a port."""

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
)


def error_of(call: Callable[[], object]) -> str:
    """What a parser says; empty if it accepts the text."""
    try:
        call()
    except JsonTextError as error:
        return str(error)
    return ""


@given(JSON)
def test_what_json_writes_is_parsed_to_the_same(value: object) -> None:
    for ensure_ascii in (True, False):
        text = json.dumps(value, ensure_ascii=ensure_ascii)
        assert json_text.parse(text) == value
        assert json_text.parse_objects(text.encode(), LONGEST) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused_with_a_text_that_can_be_encoded(data: bytes) -> None:
    error_of(lambda: json_text.parse(data)).encode()
    error_of(lambda: json_text.parse_objects(data, LONGEST)).encode()
    json_text.find_excess(data)


@given(st.text(st.characters(categories=["Cs", "L"]), max_size=8), st.lists(st.text(), max_size=3))
def test_a_surrogate_anywhere_is_refused(text: str, others: list[str]) -> None:
    """Also of a pair in a Python string: it is written as two escapes, which are a character."""
    document = json.dumps({"a": [*others, {"b": text}]})
    try:
        json.loads(document)["a"][-1]["b"].encode()
    except UnicodeEncodeError:
        with pytest.raises(OutOfBoundsError, match="surrogate") as refused:
            json_text.parse(document)
        assert refused.value.path == f"a[{len(others)}].b"
    else:
        assert json_text.parse(document) == json.loads(document)


@pytest.mark.parametrize(
    ("text", "path", "says"),
    [
        (r'{"a": {"b": ["x", "\ud800"]}}', "a.b[1]", "surrogate"),
        (r'{"a": "\ud83d\ude00", "b": "\ude00"}', "b", "surrogate"),
        (r'{"a": "\\ud800", "b": "\\\ud800"}', "b", "surrogate"),
        (r'{"a": {"\ud800": 1}}', r"a.\ud800", "surrogate"),
        ('"\ud800"', "", "surrogate"),
        (b'{"a": "\xff"}', "a", "UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "a", "UTF-8"),
        (f'{{"a": {{"b": {DEEP}}}}}', "a.b" + "[0]" * 14 + "…", "200 levels"),
        (f'{{"x": 1, "a": {LONG}}}', "a", "4300 digits"),
        ('{"a": [1, 2, 1e309]}', "a[2]", "64-bit floats"),
        ('{"a": -1e999999999}', "a", "64-bit floats"),
        (f'{{"a": {LONG[:300]}e99}}', "a", "64-bit floats"),
    ],
)
def test_a_refusal_names_the_field_and_the_bound(text: str | bytes, path: str, says: str) -> None:
    with pytest.raises(OutOfBoundsError) as refused:
        json_text.parse(text)
    assert refused.value.path == path
    assert says in refused.value.why


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1,]", "NaN", "-Infinity", "01", "1.", '"\x1f"', "{} {}", "\ufeff{}", "nul", "'a'"],
)
def test_what_is_not_json_is_refused_as_such(text: str) -> None:
    with pytest.raises(JsonTextError, match="not valid JSON") as refused:
        json_text.parse(text)
    assert not isinstance(refused.value, OutOfBoundsError)


def test_texts_up_to_the_bounds_are_parsed() -> None:
    deepest = "[" * json_text.MAX_DEPTH + "]" * json_text.MAX_DEPTH
    assert json.dumps(json_text.parse(deepest)).replace(" ", "") == deepest
    assert json_text.parse("9" * json_text.MAX_DIGITS) == int("9" * json_text.MAX_DIGITS)
    assert json_text.parse('{"id": "e1e999999999", "at": [1.7e308]}')["at"] == [1.7e308]
    with pytest.raises(OutOfBoundsError, match="5 bytes, more than 4"):
        json_text.parse("[1,2]", max_bytes=4)


def test_of_a_list_only_what_exceeds_a_bound_is_replaced() -> None:
    """An object of one user takes no list from the others."""
    honest = {"metadata": {"name": "a", "note": "é 😀 \\ud800"}}
    objects = [
        json.dumps(honest),
        r'{"a": "x\ud800y"}',
        f'{{"a": {DEEP}, "b": 2}}',
        f'{{"a": {LONG}, "b": {{"c": [1]}}}}',
        '{"a": 1e999}',
    ]
    text = b'{"items": [%s, {"a": "\xff"}]}' % ", ".join(objects).encode()
    first, surrogate, deep, long, infinite, bytes_ = json_text.parse_objects(text, LONGEST)["items"]
    assert first == honest
    assert surrogate == {"a": "x\ufffdy"}
    assert json.dumps(deep["a"]).count("[") == json_text.MAX_DEPTH - 3
    assert deep["b"] == 2
    assert long == {"a": None, "b": {"c": [1]}}
    assert infinite == {"a": None}
    assert bytes_ == {"a": "\ufffd"}


@pytest.mark.parametrize(
    "unit",
    [
        "[",
        "{",
        '{"a":',
        '"',
        '\\"',
        r'"\ud800',
        "1",
        "9,",
        "[],",
        '"",',
        "1e",
        "-",
        ".",
        "\\",
        "\0",
    ],
)
@pytest.mark.parametrize("end", ["", r'"\ud800"', "1e999"])
def test_the_longest_bodies_of_one_kind_take_about_a_second(unit: str, end: str) -> None:
    """The processor's time of this process, which others on the machine do not change much."""
    body = (f"[{unit * (LONGEST // len(unit))}"[: LONGEST - len(end) - 1] + end + "]").encode()
    started = time.process_time()
    for text in (body, body[1:-1]):
        assert len(error_of(functools.partial(json_text.parse, text))) < 2000
    assert time.process_time() - started < 10


@settings(max_examples=20)
@given(st.integers(1, 300), st.integers(0, 300))
def test_a_depth_is_counted_alike_for_arrays_and_objects(arrays: int, objects: int) -> None:
    text = "[" * arrays + '{"a":' * objects + "1" + "}" * objects + "]" * arrays
    if arrays + objects <= json_text.MAX_DEPTH:
        assert json_text.find_excess(text.encode()) is None
        json_text.parse(text)
    else:
        assert json_text.find_excess(text.encode()) is not None
        with pytest.raises(OutOfBoundsError, match="200 levels"):
            json_text.parse(text)
