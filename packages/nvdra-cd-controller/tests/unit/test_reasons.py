# SPDX-License-Identifier: Apache-2.0
"""Every reason that the controller's source names has a test that provokes it."""

import ast
from pathlib import Path

import nvdra_cd_controller
import pytest
from nvdra_cd_controller.status import ConditionReason

COMPONENT = Path(__file__).parents[1] / "component"

PROVOKED = {
    "NAME_TAKEN": "test_a_taken_name_is_reported_and_the_domain_continues_once_it_is_free",
    "INVALID_CONFIG": "test_an_invalid_domain_says_why_and_can_be_deleted",
}
NEVER_ON_PURPOSE = {"INTERNAL"}
"""Internal errors are bugs."""


def source() -> str:
    (folder,) = nvdra_cd_controller.__path__
    return "\n".join(path.read_text() for path in sorted(Path(folder).glob("*.py")))


def raised() -> set[str]:
    """The reasons in the source; a comparison with a reason counts as well."""
    return {
        node.attr
        for node in ast.walk(ast.parse(source()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "Reason"
    }


def test_every_reason_that_is_raised_is_provoked_by_a_test() -> None:
    assert raised() - NEVER_ON_PURPOSE == set(PROVOKED)


@pytest.mark.parametrize("test", PROVOKED.values())
def test_those_tests_exist(test: str) -> None:
    texts = "\n".join(path.read_text() for path in COMPONENT.glob("test_*.py"))
    assert f"async def {test}(" in texts


def test_every_reason_of_a_condition_is_used() -> None:
    code = source()
    assert [
        reason.name
        for reason in ConditionReason
        if code.count(f"ConditionReason.{reason.name}") == 0
    ] == []
