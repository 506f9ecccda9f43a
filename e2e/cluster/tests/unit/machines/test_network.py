# SPDX-License-Identifier: Apache-2.0
"""The rules by which a link between two nodes is cut."""

from nvdra_lab.machines import network
from nvdra_lab.model import Node

ONE = Node(name="node-1", address="10.95.0.11", pod_cidr="10.128.1.0/24")
OTHER = Node(name="node-2", address="10.95.0.12", pod_cidr="10.128.2.0/24")


def test_a_link_is_cut_in_both_directions_for_requests_and_answers() -> None:
    rules = network.cut_rules(ONE, OTHER, 50000)
    assert [(rule[1], rule[3], rule[6], rule[7]) for rule in rules] == [
        (ONE.pod_cidr, OTHER.pod_cidr, "--dport", "50000"),
        (ONE.pod_cidr, OTHER.pod_cidr, "--sport", "50000"),
        (OTHER.pod_cidr, ONE.pod_cidr, "--dport", "50000"),
        (OTHER.pod_cidr, ONE.pod_cidr, "--sport", "50000"),
    ]
    assert {rule[-1] for rule in rules} == {"DROP"}


def test_a_link_is_the_same_from_either_end_and_another_at_another_port() -> None:
    def mark(one: Node, other: Node, port: int) -> set[str]:
        return {rule[rule.index("--comment") + 1] for rule in network.cut_rules(one, other, port)}

    assert mark(ONE, OTHER, 50000) == mark(OTHER, ONE, 50000)
    assert len(mark(ONE, OTHER, 50000)) == 1
    assert mark(ONE, OTHER, 50000) != mark(ONE, OTHER, 50005)
