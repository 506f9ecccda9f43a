# SPDX-License-Identifier: Apache-2.0
"""Which lab the demo takes as it is, and what it says of one that is not well."""

import pytest
from nvdra_lab import model
from nvdra_lab.kubernetes.node_objects import NodeFacts
from nvdra_lab.providers.local import LabRequest
from nvdra_lab.status_report import Component, StatusReport

from e2e.demo import environment_setup

LAB = model.plan("lab", 0, 2, "dgx-h100", "1.36.3", {})


def component(name: str, state: str) -> Component:
    return Component(name, state, pid=1, restarts=0, memory_mib=1.0, log="")


@pytest.mark.parametrize("kube", ["1", "1.36", "1.36.3"])
def test_a_lab_with_the_nodes_hardware_and_release_asked_for_is_as_wished(kube: str) -> None:
    assert environment_setup.matches_request(LAB, LabRequest("lab", 2, "dgx-h100", kube))


@pytest.mark.parametrize(
    "wishes",
    [
        LabRequest("lab", 3, "dgx-h100", "1.36"),
        LabRequest("lab", 2, "t4", "1.36"),
        LabRequest("lab", 2, "dgx-h100", "1.3"),
        LabRequest("lab", 2, "dgx-h100", "1.36.2"),
        LabRequest("lab", 2, "dgx-h100", "1.36", has_passthrough=True),
    ],
)
def test_any_difference_is_noticed(wishes: LabRequest) -> None:
    assert not environment_setup.matches_request(LAB, wishes)


def test_the_components_and_nodes_that_are_not_well_are_named() -> None:
    report = StatusReport(
        name="lab",
        provider="local",
        kubernetes="1.36.3",
        gates={},
        profile="dgx-h100",
        kubeconfig="",
        components=[component("etcd", "running"), component("node-1/kubelet", "exit 1")],
        nodes=[
            NodeFacts("node-1", False, "kubelet stopped posting", "", ""),
            NodeFacts("node-2", True, "", "", ""),
        ],
        trouble="",
    )
    assert (
        environment_setup.problems(report)
        == "node-1/kubelet: exit 1\nnode-1: kubelet stopped posting"
    )
