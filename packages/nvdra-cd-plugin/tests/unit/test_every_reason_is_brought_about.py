"""The reasons that the plugin's code names: each has a test that brings it about for real."""

import ast
from collections.abc import Iterator
from pathlib import Path

import nvdra_cd_plugin
from nvdra_api.types.errors import Reason

TESTS = Path(__file__).parents[1]
BROUGHT_ABOUT = {
    Reason.API_UNAVAILABLE: "test_an_unprepare_waits_for_the_api_server_because_of_the_label",
    Reason.DAEMON_NOT_READY: "test_the_label_stays_while_a_claim_waits_and_goes_with_it",
    Reason.DEADLINE_EXCEEDED: "test_nvml_that_hangs_holds_up_nothing_but_claims",
    Reason.DEVICE_NODE_MISSING: "test_a_driver_without_imex_channels_is_told_at_prepare",
    Reason.DOMAIN_NOT_FOUND: "test_a_claim_of_a_domain_that_is_not_there",
    Reason.DRIVER_MISMATCH: "test_a_driver_that_is_missing_is_told_and_then_used",
    Reason.FABRIC_ERROR: "test_a_fabric_that_is_late_is_told_and_then_used",
    Reason.IMEX_BINARY_MISSING: "test_without_its_tool_the_hosts_imex_cannot_be_asked",
    Reason.INVALID_CONFIG: "test_two_devices_in_one_claim",
    Reason.NAMESPACE_MISMATCH: "test_a_claim_of_another_namespace_than_its_domain",
    Reason.NODE_IN_OTHER_DOMAIN: "test_a_second_domain_waits_for_the_last_claim_of_the_first",
    Reason.NOT_A_DAEMON: "test_a_daemons_claim_of_another_pod_than_the_daemon",
    Reason.STATE_CORRUPT: "test_nothing_is_given_while_nobody_knows_what_is_held",
    Reason.STATE_UNAVAILABLE: "test_a_place_for_specs_that_cannot_be_written_is_told",
    Reason.UNKNOWN_DEVICE: "test_a_device_that_the_node_does_not_offer",
}

NAMED_FOR_A_SPAN = {Reason.DEVICE_UNHEALTHY}
"""What a failed NVML call is called in a trace; no claim is refused with it."""


def test_every_reason_that_the_plugin_names_is_brought_about_by_a_test() -> None:
    package = Path(nvdra_cd_plugin.__path__[0])
    named = {name for path in package.glob("*.py") for name in _reasons(path)}
    assert named == {reason.name for reason in {*BROUGHT_ABOUT, *NAMED_FOR_A_SPAN}}


def test_those_tests_are_there_and_look_for_the_reason() -> None:
    found = {
        node.name: ast.unparse(node)
        for path in TESTS.rglob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
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
