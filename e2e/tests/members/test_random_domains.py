# SPDX-License-Identifier: Apache-2.0
"""Domains come and go at random while controller and API server are restarted."""

import statistics
import time

import pytest
from nvdra_testing.cluster import compute_domains
from nvdra_testing.cluster.api_client import ApiClient
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.random_domains import recording
from nvdra_testing.random_domains.runner import DomainsRun, Plan

SHORT = Plan(domains=3, seconds=5, seed=2, life_s=(20, 40), calm_s=(8, 12))
WHOLE = Plan(domains=20, seconds=300, seed=13)
LATE_S = 5.0
"""How late a status may be beyond Kubernetes' own, where one lab has the machine."""
SETTLED_S = 120


@pytest.mark.timeout(900, func_only=True)
def test_every_status_said_what_was_true_and_nothing_is_left(
    rack: Cluster, team: Kubectl, pytestconfig: pytest.Config
) -> None:
    is_soak = bool(pytestconfig.getoption("--soak"))
    plan, late_s = (WHOLE, LATE_S) if is_soak else (SHORT, recording.LATE_BESIDE_OTHERS_S)
    client = ApiClient.from_kubeconfig(rack.kubectl.kubeconfig)
    began = time.monotonic()
    with recording.recorded(client, team.namespace) as seen:
        domains = DomainsRun(rack, client, team.namespace, plan)
        domains.run()
        what = "all domains and pods to be gone"
        team.wait(lambda: left_of(team), what, SETTLED_S)
    away_s = sum(each.ended - each.began for each in domains.away)
    delays = [seen.delay_s(uid, domains.away) for uid in seen.names]
    starts = seen.starts_s or [0.0]
    print(
        f"{len(seen.names)} domains, {len(seen.was_ready())} of them Ready at some time, in "
        f"{time.monotonic() - began:.0f} s; {away_s:.0f} s away by {domains.restarts}; "
        f"Kubernetes itself was {max(delays):.1f} s late (median {statistics.median(delays):.1f}); "
        f"{len(seen.starts_s)} daemons said that they are Ready {max(starts):.1f} s after "
        f"their pod at the latest (median {statistics.median(starts):.1f})"
    )
    assert len(seen.names) == plan.domains
    assert seen.was_ready()
    assert seen.contradictions == []
    untruths = seen.untruths(domains.away, late_s, is_beyond_delay=True)
    assert untruths == {}, f"{untruths}; away: {domains.away}"
    compute_domains.wait_nothing_left(rack, SETTLED_S)


def left_of(team: Kubectl) -> str | None:
    return team.run("get", "computedomains,pods", "-o", "name").strip() or None
