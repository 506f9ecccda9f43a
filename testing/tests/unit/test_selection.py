# SPDX-License-Identifier: Apache-2.0
"""Which calls a campaign strikes."""

from nvdra_testing.crash_campaigns import golden_points, selection
from nvdra_testing.crash_campaigns.points import KillPoint
from nvdra_testing.crash_campaigns.selection import Selection

GOLDEN = golden_points.parse(
    """\
# prepare
pwrite64 state.sqlite-wal 9
mkdir cdi 1
sendto API server *

# delete, killed
sendto PATCH nodes/a 1
sendto PATCH team/computedomains/ring 1

# abandon, killed
sendto PATCH nodes/a 1
sendto PATCH nvdra/daemonsets/computedomain-daemon-<uid> 1
"""
)
REQUESTS = [KillPoint("sendto", "API server", nth) for nth in range(1, 100)]


def test_a_run_without_a_seed_strikes_every_call() -> None:
    whole = Selection(GOLDEN, seed=None)
    assert all(whole.includes("prepare", point) for point in REQUESTS)


def test_calls_on_records_specs_and_sockets_are_always_struck() -> None:
    drawn = Selection(GOLDEN, seed=1)
    for target in ("state.sqlite-wal", "cdi", ".<random> to dra.sock", "answer on the DRA socket"):
        assert all(drawn.includes("prepare", KillPoint("write", target, n)) for n in range(1, 30))


def test_the_first_call_of_a_kind_is_always_struck_and_a_tenth_of_the_others() -> None:
    for seed in range(20):
        drawn = Selection(GOLDEN, seed)
        chosen = [point for point in REQUESTS if drawn.includes("prepare", point)]
        assert REQUESTS[0] in chosen
        assert 1 < len(chosen) < 30


def test_a_small_selection_strikes_changes_of_specs_and_draws_a_few_other_calls() -> None:
    rename, unlink = (KillPoint(call, "cdi/k8s.yaml", 1) for call in ("rename", "unlink"))
    for seed in range(20):
        drawn = Selection(GOLDEN, seed, extent=selection.FEW)
        assert drawn.includes("prepare", rename)
        assert drawn.includes("prepare", unlink)
        assert sum(drawn.includes("prepare", point) for point in REQUESTS) < 25
    chosen = [Selection(GOLDEN, seed, extent=selection.FEW) for seed in range(200)]
    assert all(any(each.includes("prepare", point) for each in chosen) for point in REQUESTS)
    assert Selection(GOLDEN, None, extent=selection.FEW).includes("prepare", REQUESTS[0])


def test_of_the_imex_daemon_signals_locks_hosts_and_announcements_are_always_struck() -> None:
    always = {
        ("kill", "nvidia-imex SIGUSR1"),
        ("fcntl", "/run/imexd/ready.lock F_WRLCK"),
        ("pwrite64", "/etc/hosts"),
        ("answered", "PATCH nvdra/pods/daemon-node-a"),
    }
    for seed in range(20):
        drawn = Selection(GOLDEN, seed, extent=selection.DAEMON)
        assert all(drawn.includes("prepare", KillPoint(*each, 2)) for each in always)
        assert sum(drawn.includes("prepare", point) for point in REQUESTS) < 25


def test_the_same_seed_draws_the_same_calls() -> None:
    once, again = (Selection(GOLDEN, seed=7) for _ in range(2))
    assert [once.includes("prepare", point) for point in REQUESTS] == [
        again.includes("prepare", point) for point in REQUESTS
    ]


def test_a_kind_of_request_is_struck_in_the_first_operation_that_makes_it() -> None:
    patch = KillPoint("sendto", "PATCH nodes/a", 1)
    seeds = [Selection(GOLDEN, seed) for seed in range(40)]
    assert all(each.includes("delete, killed", patch) for each in seeds)
    in_second = sum(each.includes("abandon, killed", patch) for each in seeds)
    assert 4 < in_second < 25
    other = KillPoint("sendto", "PATCH nvdra/daemonsets/computedomain-daemon-<uid>", 1)
    assert all(each.includes("abandon, killed", other) for each in seeds)


def test_a_call_that_the_golden_list_does_not_have_is_always_struck() -> None:
    drawn = Selection(GOLDEN, seed=1)
    assert all(drawn.includes("prepare", KillPoint("rmdir", "new", nth)) for nth in range(1, 30))


def test_a_kept_seed_is_drawn_beside_the_seed_of_the_run() -> None:
    kept = selection.kept_seeds("# a comment\n7 prepare  # lost a record\n")
    assert kept == {"prepare": [7]}
    seven, one = Selection(GOLDEN, seed=7), Selection(GOLDEN, seed=1)
    both = Selection(GOLDEN, seed=1, kept=kept)
    for point in REQUESTS:
        expected = seven.includes("prepare", point) or one.includes("prepare", point)
        assert both.includes("prepare", point) == expected


def test_the_file_of_kept_seeds_can_be_read() -> None:
    selection.kept_seeds(selection.KEPT_SEEDS.read_text())


def test_requests_of_one_kind_have_verb_and_resource_in_common() -> None:
    assert selection.kind("PATCH team/resourceclaimtemplates/ring-channel") == (
        selection.kind("PATCH nvdra/resourceclaimtemplates/computedomain-daemon-<uid>")
    )
    assert selection.kind("PUT team/computedomains/ring/status") == "PUT computedomains/status"
    assert selection.kind("state.sqlite") == "state.sqlite"


def test_a_campaign_that_leaves_out_what_it_must_strike_says_so() -> None:
    record, other = KillPoint("pwrite64", "state.sqlite-wal", 1), KillPoint("mkdir", "k", 1)
    assert Selection(GOLDEN, seed=1).unstruck([record, other], []) == [
        "not struck: pwrite64 state.sqlite-wal no. 1"
    ]
    assert Selection(GOLDEN, seed=1).unstruck([record, other], [record]) == []
    assert Selection(GOLDEN, seed=None).unstruck([record, other], [record]) == [
        "not struck: mkdir k no. 1"
    ]
