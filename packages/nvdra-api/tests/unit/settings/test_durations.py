# SPDX-License-Identifier: Apache-2.0
"""`1m30s` → seconds."""

import pytest
from nvdra_runtime.settings import durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("15s", 15),
        ("1m30s", 90),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("0", 0),
        (".5s", 0.5),
        ("2m", 120),
    ],
)
def test_a_duration_is_a_sum_of_parts_with_units(text: str, seconds: float) -> None:
    assert durations.parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "15", "s", "15 s", "-1s", "1s2", "1d", "15S"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="such as 15s"):
        durations.parse_seconds(text)
