"""Every reason that the GPU plugin can raise is provoked by a test and explained on a page."""

import re

from nvdra_api.errors import Reason
from nvdra_runtime.telemetry.reason_explanations import EXPLANATIONS
from nvdra_testing.failures import gpu_provocations, raised_reasons

from scripts import document_reasons

DRIVER = raised_reasons.modules("nvdra_gpu_plugin")


def test_every_reason_that_the_plugin_can_raise_is_provoked_by_a_test() -> None:
    assert len(DRIVER) > 60
    raised = {name for tree in DRIVER.values() for name in raised_reasons.reasons_named(tree)}
    provoked = {reason.name for reason in gpu_provocations.PROVOCATIONS}
    assert raised - provoked == set(), (
        "add a provocation to nvdra_testing.failures.gpu_provocations"
    )
    assert provoked - raised == set(), "nothing in the plugin raises this any more"


def test_no_reason_is_computed_so_that_the_list_is_complete() -> None:
    assert raised_reasons.reasons_computed(DRIVER) == []


def test_every_reason_is_explained() -> None:
    assert set(EXPLANATIONS) == set(Reason)
    for explanation in EXPLANATIONS.values():
        assert explanation.check
        assert explanation.remedy


def test_the_placeholders_of_commands_are_explained() -> None:
    commands = [
        command.partition("   #")[0] for each in EXPLANATIONS.values() for command in each.check
    ]
    columns = {"NS", "NAME", "UID"}
    left = {word for each in commands for word in re.findall(r"\b[A-Z][A-Z_]+\b", each)} - columns
    assert left == set(document_reasons.PLACEHOLDERS)


def test_the_page_agrees_with_the_code() -> None:
    stale = "docs/reasons.md is stale: python scripts/document_reasons.py"
    assert document_reasons.PAGE.read_text() == document_reasons.page(), stale
