# SPDX-License-Identifier: Apache-2.0
"""Scalars without quotes, and keys."""

import math

import pytest
from nvdra_migrate import helm_scalars


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("NULL", None),
        ("nUll", "nUll"),
        ("y", True),
        ("off", False),
        ("oFF", "oFF"),
        ("017", 15),
        ("0o17", 15),
        ("08", 8.0),
        ("0b-11", -3),
        ("-0b-11", "-0b-11"),
        ("1_000", 1000),
        ("_1", "_1"),
        ("1:30", "1:30"),
        ("2026-08-01", "2026-08-01"),
        ("1e3", 1000.0),
        ("1e400", "1e400"),
        ("0x1p-2", "0x1p-2"),
        (".1_0", 0.1),
        ("._5", "._5"),
        ("18446744073709551615", 18446744073709551615),
        ("+18446744073709551615", 18446744073709551615.0),
        ("9" * 30, 1e30),
        ("0x" + "0" * 90 + "1f", 31),
        (".inf", math.inf),
        ("-.Inf", -math.inf),
    ],
)
def test_a_scalar_is_what_helm_takes_it_for(text: str, value: object) -> None:
    found = helm_scalars.read(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (15, "15"),
        (100000.5, "100000.5"),
        (1e6, "1e+06"),
        (1234567.5, "1.2345675e+06"),
        (16777217.0, "1.6777216e+07"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (-0.0, "-0"),
        (1e39, ".inf"),
        (math.nan, ".nan"),
        (1 << 63, None),
        (None, None),
    ],
)
def test_a_key_is_the_text_that_helm_makes_of_it(
    value: helm_scalars.Scalar, text: str | None
) -> None:
    assert helm_scalars.key(value) == text
