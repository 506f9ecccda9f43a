# SPDX-License-Identifier: Apache-2.0
"""The part of `make demo` on ComputeDomains, where nodes are connected by NVLink."""

import pytest
from nvdra_testing.cluster.installation import Cluster

from e2e.demo import domain_chapter
from e2e.demo.quickstarts import NAMESPACE
from e2e.demo.screen import Screen


def test_the_demos_pods_list_their_channel_and_the_path_to_it_is_drawn(
    rack: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    rack.kubectl.run("create", "namespace", NAMESPACE)
    try:
        domain_chapter.run(Screen(), rack)
    finally:
        rack.kubectl.delete("namespace", NAMESPACE)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines.count("channel0") == len(rack.nodes())
    for step in ("reconcile", "schedule daemon", "start daemon", "start imex", "imex ready"):
        assert any(line.startswith(step) and "█" in line for line in lines), step
    (path,) = (number for number, line in enumerate(lines) if line.startswith("critical path, "))
    steps = [line.partition("  ")[0] for line in lines[path + 1 :]]
    assert steps.index("schedule daemon") < steps.index("start imex") < steps.index("imex ready")
    assert "wait domain" not in steps
    lists = [number for number, line in enumerate(lines) if line == f"$ {domain_chapter.LIST}"]
    before, forming, formed, after = (lines[number + 1 : number + 3] for number in lists)
    assert "No resources found" in before[0]
    assert "NotReady" in forming[1]
    assert " Ready " in formed[1]
    assert "No resources found" in after[0]
