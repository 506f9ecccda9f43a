"""Which lab the demo takes as it is, and what it says of one that is not well."""

import pytest
from nvdra_lab import model
from nvdra_lab.nodes import NodeFacts
from nvdra_lab.providers.local import Wishes
from nvdra_lab.report import Component, Report

from e2e.demo import setting

LAB = model.plan("lab", 0, 2, "dgx-h100", "1.36.3", {})


def component(name: str, state: str) -> Component:
    return Component(name, state, pid=1, restarts=0, memory_mib=1.0, log="")


@pytest.mark.parametrize("kube", ["1", "1.36", "1.36.3"])
def test_a_lab_with_the_nodes_hardware_and_release_asked_for_is_as_wished(kube: str) -> None:
    assert setting.is_as_wished(LAB, Wishes("lab", 2, "dgx-h100", kube))


@pytest.mark.parametrize(
    "wishes",
    [
        Wishes("lab", 3, "dgx-h100", "1.36"),
        Wishes("lab", 2, "t4", "1.36"),
        Wishes("lab", 2, "dgx-h100", "1.3"),
        Wishes("lab", 2, "dgx-h100", "1.36.2"),
    ],
)
def test_any_difference_is_noticed(wishes: Wishes) -> None:
    assert not setting.is_as_wished(LAB, wishes)


def test_the_components_and_nodes_that_are_not_well_are_named() -> None:
    report = Report(
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
    assert setting.troubles(report) == "node-1/kubelet: exit 1\nnode-1: kubelet stopped posting"
