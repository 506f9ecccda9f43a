"""docs/failures.md on ComputeDomains: each row is what a test of one of the components shows."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/failures.md"

DOMAINS = {
    "A pod comes to a node whose daemon is not READY yet": (
        "test_a_workload_waits_for_the_daemon_that_its_own_claim_has_called"
    ),
    "The daemon's pod fits its node no more": (
        "test_why_a_daemons_pod_does_not_start_is_told_on_the_domain"
    ),
    "The daemon's image cannot be pulled": (
        "test_what_the_nodes_daemon_lacks_is_told_in_all_five_places"
    ),
    "The domain's DaemonSet may not": (
        "test_what_the_nodes_daemon_lacks_is_told_in_all_five_places"
    ),
    "The daemon's own claim": (
        "test_a_refusal_of_the_daemons_own_claim_is_told_the_workload_at_once"
    ),
    "`nvidia-imex` is not installed": "test_what_a_daemon_says_of_itself_is_told_on_the_domain",
    "A member is unreachable": "test_what_the_nodes_daemon_lacks_is_told_in_all_five_places",
    "The daemon was replaced": "test_an_entry_of_a_daemon_that_is_gone_gives_nothing",
    "GPUs have not joined": "test_a_fabric_that_is_late_is_told_and_then_used",
    "There is no driver": "test_a_driver_that_is_missing_is_told_and_then_used",
    "NVML hangs": "test_nvml_that_hangs_holds_up_nothing_but_claims",
    "The kernel module": "test_a_driver_without_imex_channels_is_told_at_prepare",
    "The node has no fabric": "test_without_fabric_a_workload_starts_without_channels",
    "A pod of a second domain": "test_a_second_domain_waits_for_the_last_claim_of_the_first",
    "The node has the label": "test_a_label_that_is_left_over_goes_at_the_start",
    "Somebody takes the node's label": (
        "test_a_label_that_is_taken_off_while_it_is_needed_is_put_back_at_once"
    ),
    "A channel or a daemon's place": "test_a_channel_in_use_is_waited_for",
    "A claim names a domain of another": "test_a_claim_of_another_namespace_than_its_domain",
    "A pod that is not the domain's": "test_a_daemons_claim_of_another_pod_than_the_daemon",
    "A config has an unknown field": "test_an_unknown_field_is_named",
    "The domain is not there": "test_a_claim_of_a_domain_that_is_going",
    "The plugin restarts": "test_a_claim_that_waited_over_a_kill_is_waited_for_again_or_let_go",
    "The plugin's state file is lost": "test_records_that_are_lost_are_taken_from_the_kubelet",
    "It is lost": "test_nothing_is_given_while_nobody_knows_what_is_held",
    "The plugin's disk": (
        "test_a_full_disk_refuses_new_claims_answers_held_ones_and_is_no_matter_once_there_is_room"
    ),
    "The API server is away": "test_what_is_held_is_answered_without_the_api_server",
    "The host runs IMEX itself": "test_a_channel_is_given_when_the_hosts_imex_is_ready",
    "An object of the name": (
        "test_a_name_that_is_taken_is_told_and_the_domain_goes_on_when_it_is_free"
    ),
    "The domain cannot be served": (
        "test_a_domain_that_cannot_be_served_says_why_and_can_be_deleted"
    ),
    "A child of the domain": "test_a_daemonset_that_somebody_changes_is_put_right",
    "A member's Node": "test_the_entry_of_a_node_that_is_gone_is_taken_out",
    "A domain is deleted and": "test_a_deletion_says_what_it_waits_for",
    "A domain is deleted while": (
        "test_who_has_a_channel_of_a_deleted_domain_keeps_it_and_the_node_until_the_end"
    ),
    "The driver is uninstalled": "test_a_domain_whose_children_are_missing_goes_all_the_same",
    "The controller is killed": (
        "test_a_controller_that_dies_is_replaced_when_its_lease_has_run_out"
    ),
}
DAEMONS = {
    "`nvidia-imex` or `nvidia-imex-ctl`": (
        "test_without_its_program_the_reason_is_told_everywhere_and_it_goes_on"
    ),
    "`nvidia-imex` dies": ("test_an_imex_that_is_killed_is_started_again_and_meanwhile_not_ready"),
    "It answers anything but READY": "test_not_ready_is_another_word_than_ready",
    "Fewer nodes than": (
        "test_a_clique_of_fewer_nodes_than_it_has_places_is_degraded_to_imex_and_ready"
    ),
    "The template": "test_imex_is_started_once_its_template_is_there_and_can_be_filled_in",
    "The daemon is killed": (
        "test_a_daemon_that_is_killed_comes_back_under_its_name_and_nobody_else_restarts"
    ),
    "The pod before it": ("test_a_predecessor_that_still_runs_makes_way_for_its_successors_imex"),
    "The clique, or an entry": (
        "test_a_clique_that_is_deleted_by_hand_comes_back_with_the_same_indexes"
    ),
    "An entry has an index": "test_an_entry_that_nobody_can_use_costs_nobody_else",
    "More nodes of a clique": "test_one_more_than_fit_is_told_and_joins_when_another_leaves",
    "The API server is away": "test_an_api_server_that_is_away_stops_no_imex",
    "`nvidia-imex` does not end": "test_it_leaves_also_while_imex_does_not_end",
    "The CRD of cliques": "test_members_join_get_ready_and_leave_and_write_nothing_twice",
}


@pytest.mark.parametrize(
    ("heading", "tests"),
    [("ComputeDomains", DOMAINS), ("IMEX daemons of a ComputeDomain", DAEMONS)],
)
def test_every_row_of_the_page_is_what_a_test_shows(heading: str, tests: dict[str, str]) -> None:
    rows = list(_rows(heading))
    assert len(rows) == len(tests)
    for row, beginning in zip(rows, tests, strict=True):
        assert row.startswith(beginning)
    assert set(tests.values()) - set(_tests()) == set()


def _rows(heading: str) -> Iterator[str]:
    """The first cell of each row below the heading."""
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    for row in rows[1:]:
        yield row.split("|")[1].strip()


def _tests() -> Iterator[str]:
    for path in ROOT.glob("packages/*/tests/component/test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name
