# SPDX-License-Identifier: Apache-2.0
"""Every reason that the daemon's source names has a component test that provokes it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import nvdra_imex_daemon
from nvdra_api.errors import Reason

COMPONENT = Path(__file__).parents[1] / "component"
BROUGHT_ABOUT = {
    Reason.API_UNAVAILABLE: ("test_an_outage_of_the_api_server_only_delays"),
    Reason.DAEMON_NOT_READY: "test_an_imex_that_is_not_ready_is_reported",
    Reason.DOMAIN_FULL: "test_a_daemon_waits_while_the_clique_is_full",
    Reason.DOMAIN_NOT_FOUND: "test_a_deleted_domain_is_reported",
    Reason.IMEX_BINARY_MISSING: (
        "test_a_missing_nvidia_imex_is_reported_and_the_daemon_keeps_running"
    ),
    Reason.INVALID_CONFIG: ("test_imex_is_started_once_its_template_is_valid"),
}


def test_every_reason_in_the_code_is_provoked_by_a_test() -> None:
    package = Path(nvdra_imex_daemon.__path__[0])
    named = {name for path in package.rglob("*.py") for name in _reasons(path)}
    assert named == {reason.name for reason in BROUGHT_ABOUT}


def test_those_tests_exist_and_check_the_reason() -> None:
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
