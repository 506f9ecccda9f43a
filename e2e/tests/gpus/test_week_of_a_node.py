# SPDX-License-Identifier: Apache-2.0
"""A week of two nodes: reboots, resets, replaced drivers and broken GPUs, while pods come and go.

Pods have whole GPUs, MIG devices and time slices; some have configurations that exceed a bound, and
harm no other. The short week has some kinds of incidents, a soak has all of them and 2,000 pods.
`--pods=500 --week-seed=3 --week-report=out/week` runs another one, with all kinds.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.week_of_a_node import incidents, report, runner
from nvdra_testing.week_of_a_node.runner import Plan

GATES = [f"--set=global.featureGates.{gate}=true" for gate in ("DynamicMIG", "TimeSlicingSettings")]
SHORT = (
    "reboot, other device majors",
    "hung GPU",
    "GPU with unknown errors",
    "plugin killed",
    "node drained",
)
SHORT_PODS, WHOLE_PODS = 40, 2000


@pytest.fixture
def dividing(cluster: Cluster, settings: list[str]) -> Iterator[Cluster]:
    """The cluster, while the driver makes MIG devices for claims."""
    cluster.install(*settings, *GATES)
    yield cluster
    cluster.install(*settings)


@pytest.mark.timeout(0)
def test_whatever_happens_to_a_node_no_claim_is_lost_or_doubled_and_no_pod_is_stuck(
    dividing: Cluster,
    idle: Cluster,
    pytestconfig: pytest.Config,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pods = pytestconfig.getoption("--pods")
    is_whole = pods is not None or pytestconfig.getoption("--soak")
    kinds = tuple(kind for kind in incidents.KINDS if is_whole or kind.name in SHORT)
    plan = Plan(
        pods=pods or (WHOLE_PODS if is_whole else SHORT_PODS),
        seed=pytestconfig.getoption("--week-seed"),
        kinds=kinds,
        is_hurried=not is_whole,
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
