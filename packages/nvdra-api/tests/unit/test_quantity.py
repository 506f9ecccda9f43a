"""Quantities: parsed, compared and written as Kubernetes does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.quantity import Quantity
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
