# SPDX-License-Identifier: Apache-2.0
"""Qualified device names: the vectors of docs/reference/cdi.md §22 and the rules behind them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_cdi import names
from nvdra_cdi.errors import InvalidNameError


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("nvidia.com/gpu=0", ("nvidia.com", "gpu", "0")),
        ("k8s.gpu.nvidia.com/claim=5f0b-gpu-0", ("k8s.gpu.nvidia.com", "claim", "5f0b-gpu-0")),
        ("v/c=d", ("v", "c", "d")),
        ("vendor/c=0:1", ("vendor", "c", "0:1")),
    ],
)
def test_a_qualified_name_comes_apart(text: str, parts: tuple[str, str, str]) -> None:
    assert names.parse_qualified_name(text) == parts
    assert names.qualified_name(*parts) == text


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("vendor.com/class=a=b", 'device "a=b"'),
        ("vendor.com/a/b=c", 'class "a/b"'),
        ("1vendor/c=d", 'vendor "1vendor"'),
        ("vendor-/c=d", 'vendor "vendor-"'),
        ("vendor/c=a:", 'device "a:"'),
        ("vendor/c=ü", 'device "ü"'),
        ("vendor/c=a\n", 'device "a\n"'),
    ],
)
def test_a_name_that_breaks_a_rule_is_refused_with_the_part_and_the_whole(
    text: str, culprit: str
) -> None:
    with pytest.raises(InvalidNameError) as caught:
        names.parse_qualified_name(text)
    assert culprit in str(caught.value)
    assert f'"{text}"' in str(caught.value)


@pytest.mark.parametrize(
    "text", ["/dev/nvidia0", "vendor.com=x", "vendor.com/=x", "=x", "vendor.com/c=", "", "/a/b=c"]
)
def test_what_is_no_qualified_name_is_a_device_as_a_whole(text: str) -> None:
    assert names.parse_device(text) == ("", "", text)
    assert not names.is_qualified_name(text)


@pytest.mark.parametrize("kind", ["gpu", "nvidia.com/", "/gpu", ""])
def test_a_kind_without_both_sides_is_all_class(kind: str) -> None:
    assert names.parse_qualifier(kind) == ("", kind)


def test_a_kind_is_split_at_the_first_slash() -> None:
    assert names.parse_qualifier("nvidia.com/a/b") == ("nvidia.com", "a/b")


@given(st.text())
def test_parsing_never_raises_and_loses_nothing(text: str) -> None:
    vendor, class_, device = names.parse_device(text)
    assert text == (names.qualified_name(vendor, class_, device) if vendor else device)


@given(st.from_regex(r"[A-Za-z]/[A-Za-z]=[A-Za-z0-9]", fullmatch=True))
def test_one_character_is_enough_for_each_part(text: str) -> None:
    assert names.is_qualified_name(text)
