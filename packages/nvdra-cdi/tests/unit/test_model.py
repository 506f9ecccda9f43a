# SPDX-License-Identifier: Apache-2.0
"""Documents as values: they can be copied, pickled, hashed and compared."""

import copy
import pickle
from dataclasses import asdict, replace
from typing import Any

import pytest
from nvdra_cdi.model import ContainerEdits, Device, Spec

DEVICE = Device("a", ContainerEdits(env=("A=b",)), {"team": "blue", "owner": "x"})
SPEC = Spec("vendor.com/class", (DEVICE,), annotations={"a": "b"}, version="0.6.0")


@pytest.mark.parametrize("value", [DEVICE, SPEC, Device("a")], ids=["device", "spec", "plain"])
def test_a_document_can_be_copied_pickled_and_hashed(value: Any) -> None:
    for again in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert again == value
        assert hash(again) == hash(value)
    assert {value: 1}[copy.deepcopy(value)] == 1


def test_annotations_compare_as_mappings_in_any_order() -> None:
    other = replace(DEVICE, annotations={"owner": "x", "team": "blue"})
    assert (other, hash(other)) == (DEVICE, hash(DEVICE))
    assert DEVICE.annotations == {"team": "blue", "owner": "x"}
    assert replace(DEVICE, annotations={"team": "red"}) != DEVICE
    assert repr(Device("a", annotations={"k": "v"})).endswith("annotations={'k': 'v'})")


def test_annotations_do_not_follow_the_mapping_that_they_were_made_from() -> None:
    notes = {"team": "blue"}
    device = Device("a", annotations=notes)
    notes["team"] = "red"
    assert device.annotations == {"team": "blue"}
    with pytest.raises(TypeError):
        device.annotations["team"] = "red"  # type: ignore[index]


def test_a_spec_becomes_plain_data_for_other_libraries() -> None:
    assert asdict(SPEC)["devices"][0]["annotations"] == {"team": "blue", "owner": "x"}
