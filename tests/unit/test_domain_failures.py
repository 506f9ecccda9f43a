# SPDX-License-Identifier: Apache-2.0
"""docs/failures.md on ComputeDomains: each row is what a test of one of the components shows."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/failures.md"

DOMAINS = {
    "A pod comes to a node whose daemon is not READY yet": (
        "test_a_workload_waits_for_the_daemon_that_its_own_claim_starts"
    ),
    "The daemon's pod does not fit on its node": (
        "test_the_domain_says_why_a_daemons_pod_does_not_start"
    ),
    "The daemon's image cannot be pulled": (
        "test_what_the_nodes_daemon_lacks_is_reported_in_all_five_places"
    ),
    "The domain's DaemonSet may not": (
        "test_what_the_nodes_daemon_lacks_is_reported_in_all_five_places"
    ),
    "The daemon's pod is evicted": (
        "test_the_domain_says_that_a_daemons_pod_was_evicted_until_there_is_another"
    ),
    "The daemon runs and cannot reach": (
        "test_a_daemon_that_does_not_reach_the_api_server_degrades_its_domain_after_a_minute"
    ),
    "The daemon's own claim": (
        "test_a_failure_of_the_daemons_own_claim_reaches_the_workload_at_once"
    ),
    "`nvidia-imex` is not installed": "test_the_domain_shows_a_daemons_message",
    "A member is unreachable": "test_what_the_nodes_daemon_lacks_is_reported_in_all_five_places",
    "The daemon was replaced": "test_an_entry_of_an_earlier_daemon_makes_no_channel_ready",
    "The daemon is killed": (
        "test_a_daemon_that_was_killed_gives_no_channel_until_its_imex_is_ready_again"
    ),
    "The node reboots": (
        "test_a_held_channel_waits_after_a_reboot_until_the_daemon_is_ready_again"
    ),
    "GPUs have not joined": "test_a_late_fabric_is_reported_and_then_used",
    "The GPUs of a node are put into another": (
        "test_a_domain_says_which_node_has_left_its_clique_and_what_to_do"
    ),
    "The GPUs of a node are in no": (
        "test_a_daemon_learns_that_the_gpus_are_in_no_fabric_any_more"
    ),
    "A GPU is lost": "test_a_gpu_that_fails_leaves_the_node_in_its_clique",
    "No GPU of the node answers": "test_a_reason_is_the_same_in_all_five_places",
    "NVML is [released]": "test_a_known_clique_is_kept_while_nvml_is_released_and_over_a_restart",
    "NVML hangs, and": (
        "test_a_query_that_hangs_ends_the_process_and_its_successor_does_not_query"
    ),
    "There is no driver": "test_a_missing_driver_is_reported_and_used_once_installed",
    "NVML hangs when": "test_nvml_that_hangs_delays_only_claims",
    "The kernel module": "test_a_driver_without_imex_channels_is_reported_at_prepare",
    "The node has no fabric": "test_without_fabric_a_workload_starts_without_channels",
    "A pod of a second domain is created": (
        "test_a_second_domain_is_pending_until_the_first_has_left_the_node"
    ),
    "A pod of a second domain comes": "test_a_second_domain_waits_for_the_last_claim_of_the_first",
    "The node has the label": "test_a_stale_label_is_removed_at_the_start",
    "Somebody takes the node's label": (
        "test_a_label_that_is_removed_while_it_is_needed_is_restored_at_once"
    ),
    "A channel or a daemon's place": "test_a_channel_in_use_is_waited_for",
    "A claim of the channel class names no": (
        "test_claims_of_channels_beyond_the_quota_are_refused"
    ),
    "A claim names a domain of another": "test_a_claim_of_another_namespace_than_its_domain",
    "A pod that is not the domain's": "test_a_daemons_claim_of_another_pod_than_the_daemon",
    "A config has an unknown field": "test_an_unknown_field_is_named",
    "The domain is not there": "test_a_claim_of_a_domain_that_is_being_deleted",
    "The plugin restarts": "test_a_claim_that_waited_during_a_kill_waits_again_or_is_unprepared",
    "The plugin's state file is lost": "test_lost_records_are_recovered_from_the_checkpoint",
    "It is lost": "test_no_device_is_given_while_prepared_claims_are_unknown",
    "The plugin's disk": ("test_a_full_disk_refuses_new_claims_only_and_until_there_is_space"),
    "The API server is away": "test_prepared_claims_are_answered_without_the_api_server",
    "The host runs IMEX itself": "test_a_channel_is_given_when_the_hosts_imex_is_ready",
    "An object of the name": (
        "test_a_taken_name_is_reported_and_the_domain_continues_once_it_is_free"
    ),
    "The domain cannot be served": ("test_an_invalid_domain_says_why_and_can_be_deleted"),
    "`maxNodesPerImexDomain` or a feature gate": (
        "test_running_domains_keep_limit_and_gates_and_follow_the_image"
    ),
    "A child of the domain": "test_a_daemonset_that_somebody_changes_is_corrected",
    "The NetworkPolicy of a domain's daemons": (
        "test_a_policy_that_is_changed_or_deleted_by_hand_is_restored"
    ),
    "An object with another domain's label": (
        "test_a_policy_of_another_domain_is_left_alone_and_said"
    ),
    "The API server rejects that NetworkPolicy": (
        "test_a_policy_that_the_api_server_rejects_is_said_and_there_are_no_daemons"
    ),
    "A tray is powered off": "test_a_daemon_whose_pod_is_not_ready_any_more_does_not_count",
    "A member's Node": "test_the_entry_of_a_departed_node_is_removed",
    "A domain is deleted and": "test_a_deletion_says_what_it_waits_for",
    "A domain is deleted while": (
        "test_a_claim_of_a_deleted_domain_keeps_its_channel_and_the_node_until_unprepared"
    ),
    "The driver is uninstalled": "test_a_domain_with_missing_children_can_be_deleted",
    "The controller's node is lost": (
        "test_a_tray_without_power_is_counted_out_and_in_again_under_its_index"
    ),
    "The controller is killed": ("test_a_killed_controller_is_replaced_when_its_lease_expires"),
}
DAEMONS = {
    "`nvidia-imex` or `nvidia-imex-ctl`": (
        "test_a_missing_nvidia_imex_is_reported_and_the_daemon_keeps_running"
    ),
    "`nvidia-imex` dies": ("test_a_killed_imex_is_restarted_and_not_ready_meanwhile"),
    "It answers anything but READY": "test_an_imex_that_is_not_ready_is_reported",
    "`nvidia-imex` hangs": ("test_an_imex_that_gives_no_answer_is_started_again_with_an_event"),
    "The cluster's name service": "test_a_formed_domain_asks_no_name_server",
    "A member joins, or comes back": (
        "test_only_a_peer_with_a_new_address_costs_the_others_their_connections"
    ),
    "Two nodes have different": (
        "test_nodes_of_two_versions_are_ready_and_say_that_they_are_not_connected"
    ),
    "A daemon's token": "test_of_any_number_of_cliques_those_are_read_that_pods_name",
    "The address of a daemon that has gone": (
        "test_a_daemon_of_another_domain_with_a_peers_address_is_refused"
    ),
    "Only port 50005": "test_a_member_whose_command_port_is_closed_is_unavailable",
    "`nvidia-imex-ctl -N` hangs": "test_a_question_that_hangs_is_told_and_harms_nothing_else",
    "Fewer nodes than": ("test_a_clique_that_is_not_full_is_degraded_for_imex_and_ready"),
    "The template": "test_imex_is_started_once_its_template_is_valid",
    "The daemon is killed, its pod replaced": (
        "test_a_killed_daemon_comes_back_with_its_name_and_no_other_restarts"
    ),
    "The daemon is killed while it writes": "test_after_a_kill_at_any_call_a_start_recovers",
    "The pod before it": ("test_a_running_predecessor_ends_its_imex_for_its_successor"),
    "No controller runs": (
        "test_daemons_write_their_entries_themselves_while_there_is_no_controller"
    ),
    "The clique, or an entry": ("test_a_deleted_clique_is_created_again_with_the_same_indexes"),
    "An entry has an index": "test_an_invalid_entry_does_not_affect_others",
    "More nodes of a clique": "test_a_daemon_waits_while_the_clique_is_full",
    "The API server is away": "test_an_outage_of_the_api_server_does_not_stop_imex",
    "`nvidia-imex` does not end": "test_a_stopped_daemon_leaves_while_imex_hangs",
    "The CRD of cliques": "test_members_work_with_a_crd_that_drops_fields",
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
    components = ROOT.glob("packages/*/tests/component/test_*.py")
    for path in (*components, *ROOT.glob("e2e/tests/*/test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name
