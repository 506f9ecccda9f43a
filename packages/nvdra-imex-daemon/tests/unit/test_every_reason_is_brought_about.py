"""The reasons that the daemon's code names: each has a test that brings it about for real."""

import ast
from collections.abc import Iterator
from pathlib import Path

import nvdra_imex_daemon
from nvdra_api.types.errors import Reason

COMPONENT = Path(__file__).parents[1] / "component"
BROUGHT_ABOUT = {
    Reason.API_UNAVAILABLE: (
        "test_an_api_server_that_is_away_for_a_while_costs_nothing_but_the_time"
    ),
    Reason.DAEMON_NOT_READY: "test_not_ready_is_another_word_than_ready",
    Reason.DOMAIN_FULL: "test_one_more_than_fit_is_told_and_joins_when_another_leaves",
    Reason.DOMAIN_NOT_FOUND: "test_a_domain_that_is_gone_is_said_to_be",
    Reason.IMEX_BINARY_MISSING: (
        "test_without_its_program_the_reason_is_told_everywhere_and_it_goes_on"
    ),
    Reason.INVALID_CONFIG: ("test_imex_is_started_once_its_template_is_there_and_can_be_filled_in"),
}


def test_every_reason_that_the_daemon_names_is_brought_about_by_a_test() -> None:
    package = Path(nvdra_imex_daemon.__path__[0])
    named = {name for path in package.glob("*.py") for name in _reasons(path)}
    assert named == {reason.name for reason in BROUGHT_ABOUT}


def test_those_tests_are_there_and_look_for_the_reason() -> None:
    found = {
        node.name: ast.unparse(node)
        for path in COMPONENT.glob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    for reason, test in BROUGHT_ABOUT.items():
        assert reason.value in found[test]


def _reasons(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "Reason"
        ):
            yield node.attr
