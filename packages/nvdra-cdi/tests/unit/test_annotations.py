# SPDX-License-Identifier: Apache-2.0
"""Container annotations that ask for devices (docs/reference/cdi.md §9)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_cdi import annotations
from nvdra_cdi.errors import AnnotationError


def test_a_key_names_plugin_and_device_without_slashes() -> None:
    assert annotations.key("vendor.class", "a/b/0") == "cdi.k8s.io/vendor.class_a_b_0"


def test_a_key_of_63_characters_is_the_longest() -> None:
    assert annotations.key("v", "x" * 61).endswith("x")
    with pytest.raises(AnnotationError, match="longer than 63 characters"):
        annotations.key("v", "x" * 62)


@pytest.mark.parametrize(
    ("plugin", "device_id"),
    [("", "a"), ("a", ""), ("-a", "b"), ("a", "b-"), ("a b", "c"), ("a", "ü")],
)
def test_what_makes_no_key_is_refused(plugin: str, device_id: str) -> None:
    with pytest.raises(AnnotationError):
        annotations.key(plugin, device_id)


def test_a_value_is_a_list_of_qualified_names() -> None:
    assert annotations.value(["v.com/c=a", "v.com/c=b:1"]) == "v.com/c=a,v.com/c=b:1"


@pytest.mark.parametrize(
    "devices", [[], ["/dev/null"], ["v.com/c=a", "v.com/c=a,b"], [" v.com/c=a"]]
)
def test_a_value_that_nobody_could_parse_is_refused(devices: list[str]) -> None:
    with pytest.raises(AnnotationError):
        annotations.value(devices)


def test_annotations_are_extended_and_the_given_ones_left_alone() -> None:
    given_ones = {"other": "x"}
    assert annotations.update(given_ones, "v.c", "a", ["v.com/c=a"]) == {
        "other": "x",
        "cdi.k8s.io/v.c_a": "v.com/c=a",
    }
    assert given_ones == {"other": "x"}


def test_a_key_that_is_taken_is_not_overwritten() -> None:
    with pytest.raises(AnnotationError, match=r"cdi\.k8s\.io/v\.c_a already exists"):
        annotations.update({"cdi.k8s.io/v.c_a": "x"}, "v.c", "a", ["v.com/c=a"])


def test_devices_are_found_in_the_order_of_the_keys() -> None:
    found = annotations.parse(
        {"cdi.k8s.io/b": "v/c=1,v/c=0", "x": "not, ours", "cdi.k8s.io/a": "v/c=2"}
    )
    assert list(found.items()) == [
        ("cdi.k8s.io/a", ("v/c=2",)),
        ("cdi.k8s.io/b", ("v/c=1", "v/c=0")),
    ]


@pytest.mark.parametrize("value", ["", "v/c=a,", "v/c=a, v/c=b", "nonsense"])
def test_an_item_that_is_no_name_fails_with_its_key(value: str) -> None:
    with pytest.raises(AnnotationError, match=r"cdi\.k8s\.io/a: "):
        annotations.parse({"cdi.k8s.io/a": value})


@given(st.lists(st.sampled_from(["v/c=0", "v.com/c=a:1"]), min_size=1, max_size=3), st.text())
def test_what_is_written_is_read_back(devices: list[str], device_id: str) -> None:
    try:
        written = annotations.update({}, "v.c", device_id, devices)
    except AnnotationError:
        return
    assert list(annotations.parse(written).values()) == [tuple(devices)]
