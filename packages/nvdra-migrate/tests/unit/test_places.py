# SPDX-License-Identifier: Apache-2.0
"""Places in a file."""

import pytest
from nvdra_migrate import places
from nvdra_migrate.places import Place

DEEP = {"a": {"b.c": [{"d[0]": 1}, "x"]}}


def test_a_place_is_written_as_it_is_read() -> None:
    place = Place("Kind/name").key("a", "b.c").item(0).key("d[0]")
    assert str(place) == r"Kind/name:a.b\.c[0].d\[0\]"
    assert Place("Kind/name").below(str(place)) == place.path
    assert places.found(DEEP, place.path) == 1
    assert [str(Place()), str(Place("#2")), str(Place("", "a"))] == [".", "#2", "a"]


def test_the_path_below_a_place() -> None:
    assert Place().below(".") == ""
    assert Place().below("a.b") == "a.b"
    assert Place("K/n", "a").below("K/n:a.b") == "b"
    assert Place("K/n", "a").below("K/n:a[1]") == "[1]"
    assert Place("K/n", "a").below("K/n:a") == ""
    assert Place("K/n", "a").below("K/n:ab") is None
    assert Place("K/n").below("K/other:a") is None


@pytest.mark.parametrize("path", ["b", "a.b", r"a.b\.c[2]", r"a.b\.c.0", "a..", "a[x]", "a]"])
def test_a_place_with_nothing_is_an_error(path: str) -> None:
    with pytest.raises(KeyError):
        places.found(DEEP, path)


def test_an_object_has_its_name_and_anything_else_has_not() -> None:
    named = {"apiVersion": "v1", "kind": "K", "metadata": {"name": "n", "namespace": "s"}}
    assert places.of_object(named, Place("#2")) == Place("K/s/n")
    assert places.of_object({**named, "metadata": {"name": "n"}}, Place()) == Place("K/n")
    for other in ({**named, "kind": 1}, {**named, "metadata": []}, {"kind": "K"}):
        assert places.of_object(other, Place("#2")) == Place("#2")
