"""A week of two nodes: reboots, resets, replaced drivers and hung GPUs, while pods come and go.

The short week has some kinds of incidents, a soak has all of them and 2,000 pods. `--pods=500
--week-seed=3 --week-report=out/week` runs another one, with all kinds.
"""

import sys
from pathlib import Path

import pytest
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.week_of_a_node import incidents, report, runner
from nvdra_testing.week_of_a_node.runner import Plan

SHORT = ("reboot, other device majors", "hung GPU", "plugin killed")
SHORT_PODS, WHOLE_PODS = 40, 2000


@pytest.mark.timeout(0)
def test_whatever_happens_to_a_node_no_claim_is_lost_or_doubled_and_no_pod_is_stuck(
    idle: Cluster, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = pytestconfig.getoption("--pods")
    is_whole = pods is not None or pytestconfig.getoption("--soak")
    kinds = tuple(kind for kind in incidents.KINDS if is_whole or kind.name in SHORT)
    plan = Plan(
        pods=pods or (WHOLE_PODS if is_whole else SHORT_PODS),
        seed=pytestconfig.getoption("--week-seed"),
        kinds=kinds,
    )

    def tell(line: str) -> None:
        if is_whole:
            with capsys.disabled():
                sys.stdout.write(f"{line}\n")
                sys.stdout.flush()

    week = runner.run(idle, plan, tell)
    if path := pytestconfig.getoption("--week-report"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(f"{path}.json").write_text(report.as_json(week))
        Path(f"{path}.md").write_text(report.as_markdown(week))
    with capsys.disabled():
        sys.stdout.write(f"\n{report.as_markdown(week)}")
    wrong = {word: found for word, found in week.problems.items() if found}
    assert not wrong, report.as_markdown(week)
    assert week.pods.total() >= plan.pods
    assert {cause.kind for cause in week.causes} >= {kind.name for kind in kinds}
