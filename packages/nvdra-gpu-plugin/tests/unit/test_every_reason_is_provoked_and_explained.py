"""The list of reasons is taken from the code: each has a test that brings it about, and a page."""

import re

import provoking
import raising
from nvdra_api.types.errors import Reason
from nvdra_api.types.reasons import EXPLANATIONS

from scripts import document_reasons

DRIVER = raising.modules("nvdra_gpu_plugin")


def test_every_reason_that_the_driver_can_raise_is_brought_about_by_a_test() -> None:
    assert len(DRIVER) > 60
    raised = {name for tree in DRIVER.values() for name in raising.named(tree)}
    provoked = {reason.name for reason in provoking.PROVOCATIONS}
    assert raised - provoked == set(), "add a provocation to e2e/harness/provoking.py"
    assert provoked - raised == set(), "nothing in the driver raises this any more"


def test_a_reason_is_always_written_out_so_that_the_list_is_whole() -> None:
    assert raising.computed(DRIVER) == []


def test_every_reason_is_explained() -> None:
    assert set(EXPLANATIONS) == set(Reason)
    for explanation in EXPLANATIONS.values():
        assert explanation.check
        assert explanation.remedy


def test_what_commands_leave_to_be_filled_in_is_explained() -> None:
    commands = [
        command.partition("   #")[0] for each in EXPLANATIONS.values() for command in each.check
    ]
    columns = {"NS", "NAME", "UID"}
    left = {word for each in commands for word in re.findall(r"\b[A-Z][A-Z_]+\b", each)} - columns
    assert left == set(document_reasons.PLACEHOLDERS)


def test_the_page_says_what_the_code_says() -> None:
    stale = "docs/reasons.md is stale: python scripts/document_reasons.py"
    assert document_reasons.PAGE.read_text() == document_reasons.page(), stale
