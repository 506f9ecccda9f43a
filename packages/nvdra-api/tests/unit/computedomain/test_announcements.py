# SPDX-License-Identifier: Apache-2.0
"""What a daemon says on its pod is read as it was written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_runtime.computedomain import announcements
from nvdra_runtime.computedomain.announcements import Announcement

KEY = "nvdra.nvidia.com/imex-daemon"


@given(
    st.builds(
        Announcement,
        ip=st.text(min_size=1),
        is_ready=st.booleans(),
        message=st.text(),
        preferred_index=st.none() | st.integers(0, 9999),
        has_left=st.booleans(),
        started=st.none() | st.integers(0),
    )
)
def test_what_was_written_is_read(announcement: Announcement) -> None:
    text = announcements.annotation(announcement)
    assert announcements.from_annotations({KEY: text}) == announcement


def test_what_is_not_set_is_left_out() -> None:
    assert announcements.annotation(Announcement("10.4.0.1")) == '{"ip":"10.4.0.1"}'


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "{}", '{"ip":""}', '{"ip":4}', "[" * 100_000])
def test_anything_else_says_nothing(text: str) -> None:
    assert announcements.from_annotations({KEY: text}) is None
    assert announcements.from_annotations({}) is None


def test_values_of_other_types_are_ignored() -> None:
    text = '{"ip":"::1","ready":1,"message":2,"index":true,"left":"yes"}'
    assert announcements.from_annotations({KEY: text}) == Announcement("::1")
