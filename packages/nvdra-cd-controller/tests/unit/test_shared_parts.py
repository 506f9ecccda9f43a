# SPDX-License-Identifier: Apache-2.0
"""Objects keep their values, and have their equal parts in common."""

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from nvdra_cd_controller.shared_parts import SharedParts, shared

values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=12,
)


@given(values, values)
def test_the_value_stays_the_same_and_nothing_is_changed(value: Any, model: Any) -> None:
    before = copy.deepcopy((value, model))
    made = shared(value, model)
    assert json.dumps(made, sort_keys=True) == json.dumps(value, sort_keys=True)
    assert (value, model) == before


@given(values)
def test_an_equal_value_is_the_model_itself(value: Any) -> None:
    assert shared(json.loads(json.dumps(value)), value) is value


def test_true_is_not_one() -> None:
    assert shared({"a": [True]}, {"a": [1]})["a"][0] is True


def test_objects_of_a_collection_differ_in_their_own_parts_alone() -> None:
    def daemonset(uid: str) -> Any:
        container = {"name": "daemon", "env": [{"name": "A", "value": "1"}, {"name": "UID"}]}
        text = json.dumps(
            {
                "metadata": {"name": uid, "managedFields": [1]},
                "spec": {"selector": {"uid": uid}, "template": {"containers": [container]}},
            }
        )
        return json.loads(text)

    transform = SharedParts(lambda obj: {"metadata": {"name": obj["metadata"]["name"]}, **obj})
    first, second = transform(daemonset("u-1")), transform(daemonset("u-2"))
    assert second == daemonset("u-2")
    assert second["spec"]["template"] is first["spec"]["template"]
    assert second["spec"]["selector"] is not first["spec"]["selector"]
