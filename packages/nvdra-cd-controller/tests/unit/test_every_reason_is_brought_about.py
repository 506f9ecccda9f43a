"""Reasons are taken from the code: each that the controller raises has a test that provokes it."""

import ast
from pathlib import Path

import nvdra_cd_controller
import pytest
from nvdra_cd_controller.status import Because

COMPONENT = Path(__file__).parents[1] / "component"

PROVOKED = {
    "NAME_TAKEN": "test_a_name_that_is_taken_is_told_and_the_domain_goes_on_when_it_is_free",
    "INVALID_CONFIG": "test_a_domain_that_cannot_be_served_says_why_and_can_be_deleted",
}
NEVER_ON_PURPOSE = {"INTERNAL"}
"""A bug of ours."""


def source() -> str:
    (folder,) = nvdra_cd_controller.__path__
    return "\n".join(path.read_text() for path in sorted(Path(folder).glob("*.py")))


def raised() -> set[str]:
    """To compare with one counts like raising it."""
    return {
        node.attr
        for node in ast.walk(ast.parse(source()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "Reason"
    }


def test_every_reason_that_is_raised_is_brought_about_by_a_test() -> None:
    assert raised() - NEVER_ON_PURPOSE == set(PROVOKED)


@pytest.mark.parametrize("test", PROVOKED.values())
def test_those_tests_are_there(test: str) -> None:
    texts = "\n".join(path.read_text() for path in COMPONENT.glob("test_*.py"))
    assert f"async def {test}(" in texts


def test_every_reason_of_a_condition_is_used() -> None:
    code = source()
    assert [reason.name for reason in Because if code.count(f"Because.{reason.name}") == 0] == []
