# SPDX-License-Identifier: Apache-2.0
"""Values over values."""

from typing import Any

import pytest
from nvdra_migrate import helm_values
from nvdra_migrate.helm_values import Setting
from nvdra_migrate.values_text import ValuesFileError

BELOW = {"a": {"b": 1, "c": [1, {"d": 2}]}, "e": "f"}


def test_maps_are_joined_and_anything_else_is_replaced() -> None:
    above = {"a": {"c": [3], "g": None}, "e": {"h": 1}}
    assert helm_values.merged(BELOW, above) == {"a": {"b": 1, "c": [3], "g": None}, "e": {"h": 1}}
    assert BELOW == {"a": {"b": 1, "c": [1, {"d": 2}]}, "e": "f"}


@pytest.mark.parametrize(
    ("name", "text", "change"),
    [
        ("a.b", "2", {"a": {"b": 2, "c": [1, {"d": 2}]}}),
        ("a.c[1].d", "x", {"a": {"b": 1, "c": [1, {"d": "x"}]}}),
        ("a.c[3]", "x", {"a": {"b": 1, "c": [1, {"d": 2}, None, "x"]}}),
        (r"a\.b", "TRUE", {"a.b": True}),
        ("e", "007", {"e": "007"}),
        ("e", "null", {"e": None}),
        ("e", "{1,b,}", {"e": [1, "b", ""]}),
        ("e", r"x\,y", {"e": "x,y"}),
        ("e", "x,i=0", {"e": "x", "i": 0}),
        ("e", "9223372036854775808", {"e": "9223372036854775808"}),
    ],
)
def test_one_value_is_set_as_helm_sets_it(name: str, text: str, change: dict[str, Any]) -> None:
    setting = Setting(name, text, is_text=False)
    assert helm_values.with_settings(BELOW, [setting]) == {**BELOW, **change}
    assert BELOW == {"a": {"b": 1, "c": [1, {"d": 2}]}, "e": "f"}


def test_a_value_may_be_set_as_a_text_after_all_others() -> None:
    settings = [Setting("a", "{1,true}", is_text=True), Setting("a", "2", is_text=False)]
    assert helm_values.with_settings({}, settings) == {"a": ["1", "true"]}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a", "x,b"),
        ("a[x]", "1"),
        ("new[17]", "1"),
        ("new[-1]", "1"),
        ("e.x", "1"),
        ("e[0]", "1"),
        ("a", "{1"),
    ],
)
def test_what_helm_refuses_is_an_error(name: str, text: str) -> None:
    with pytest.raises(ValuesFileError, match="helm takes no "):
        helm_values.with_settings(BELOW, [Setting(name, text, is_text=False)])
