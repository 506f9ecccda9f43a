# SPDX-License-Identifier: Apache-2.0
"""Quantities: parsed, compared and written as Kubernetes does."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.quantity import MAX_CHARACTERS, MAX_EXPONENT, Quantity, QuantityBoundError
from pydantic import BaseModel, ValidationError


class Limits(BaseModel):
    memory: Quantity


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1.5Gi", "1536Mi"),
        ("1024", "1024"),
        ("1.5", "1500m"),
        ("1024Mi", "1Gi"),
        ("2000", "2k"),
        ("1e9", "1G"),
        ("5E", "5E"),
        ("0", "0"),
        ("1.5n", "2n"),
        ("-5Gi", "-5Gi"),
    ],
)
def test_a_quantity_is_written_with_the_largest_suffix_of_its_family(
    text: str, canonical: str
) -> None:
    assert str(Quantity.parse(text)) == canonical


def test_quantities_compare_by_amount() -> None:
    assert Quantity.parse("1024Mi") == Quantity.binary(1 << 30)
    assert Quantity.parse("1G") < Quantity.parse("1Gi")
    assert len({Quantity.parse("1k"), Quantity.decimal(1000)}) == 1


@pytest.mark.parametrize("text", ["", "abc", "10 Gi", "10GB", "1.2.3", "."])
def test_a_text_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="quantities must match the regular expression"):
        Quantity.parse(text)


@pytest.mark.parametrize("text", ["10K", "1ki", "5e"])
def test_an_unknown_suffix_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="unable to parse quantity's suffix"):
        Quantity.parse(text)


def test_a_field_takes_texts_and_numbers_and_is_written_as_text() -> None:
    assert Limits.model_validate({"memory": 1024}).memory == Quantity.parse("1024")
    assert Limits.model_validate_json('{"memory": " 1Gi "}').model_dump(mode="json") == {
        "memory": "1Gi"
    }
    with pytest.raises(ValidationError, match="not a quantity"):
        Limits.model_validate({"memory": True})


@given(st.integers(-(10**15), 10**15), st.booleans())
def test_a_quantity_that_is_written_and_parsed_again_is_the_same(amount: int, binary: bool) -> None:
    quantity = Quantity.binary(amount) if binary else Quantity.decimal(amount)
    assert Quantity.parse(str(quantity)) == quantity


@pytest.mark.parametrize(
    ("text", "nanounits"),
    [
        # As apimachinery 0.37.2 parses them.
        ("1e30", 10**39),
        ("-1.0000000001", -1000000001),
        ("1e-12", 1),
        ("-1e-99", -1),
        ("0.0000000001Ki", 103),
        ("1.0000000001Ki", 1024000000103),
        ("10Ei", (2**63 - 1) * 10**9),
        ("-99999999999999999999Ki", -(2**63 - 1) * 10**9),
        ("99999999999999999999", 99999999999999999999 * 10**9),
        ("1.T", 10**21),
        (".5", 5 * 10**8),
    ],
)
def test_amounts_are_those_of_kubernetes(text: str, nanounits: int) -> None:
    assert Quantity.parse(text).amount == Fraction(nanounits, 10**9)


@pytest.mark.parametrize("number", ["1", "-1.5", "0", "123456789012345678901234567890"])
@pytest.mark.parametrize("exponent", [MAX_EXPONENT + 1, 5000, 999_999_999, 10**200])
def test_an_exponent_beyond_the_bound_is_refused(number: str, exponent: int) -> None:
    for text in (f"{number}e{exponent}", f"{number}E-{exponent}"):
        with pytest.raises(QuantityBoundError):
            Quantity.parse(text)


NUMBERS = r"[+-]?[0-9]{0,300}\.?[0-9]{0,300}"


@given(st.from_regex(rf"{NUMBERS}([eE][+-]?[0-9]{{1,40}}|[A-Za-z]{{0,3}})", fullmatch=True))
def test_any_quantity_is_refused_or_can_be_written(text: str) -> None:
    try:
        written = str(Quantity.parse(text))
    except ValueError as error:
        written = str(error)
    assert len(written) <= MAX_CHARACTERS + MAX_EXPONENT + 10


@pytest.mark.parametrize(
    "text", ["1" * 3_000_000, "1" * 3_000_000 + "x", "e" * 3_000_000, "1" * 250 + "x", "1." * 120]
)
def test_a_long_text_is_refused_at_once(text: str) -> None:
    started = time.process_time()
    with pytest.raises(ValueError, match="quantities"):
        Quantity.parse(text)
    assert time.process_time() - started < 1


@pytest.mark.parametrize("number", ["1e400", "9" * 4000, "1e99999"])
def test_a_number_beyond_the_bounds_is_no_quantity(number: str) -> None:
    with pytest.raises(ValidationError, match="quantities"):
        Limits.model_validate_json(f'{{"memory": {number}}}')
