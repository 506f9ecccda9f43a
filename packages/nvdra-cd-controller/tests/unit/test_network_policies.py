# SPDX-License-Identifier: Apache-2.0
"""The NetworkPolicy of a domain's daemons, and how changes of it are corrected."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from nvdra_api.ids import DomainUID
from nvdra_api.meta import JsonObject
from nvdra_cd_controller import children, network_policies
from nvdra_cd_controller.network_policies import NetworkRules
from nvdra_testing.control_plane.domain_values import CHILD_CONFIG, UID

LABEL = "resource.nvidia.com/computeDomain"
OTHER = DomainUID("99999999-2222-3333-4444-555555555555")
MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
RULES = NetworkRules.model_validate(
    {
        "ingress": [{"ports": [{"protocol": "TCP", "port": 8080}], "from": [MONITORING]}],
        "egress": [{"ports": [{"protocol": "UDP", "port": 53}]}],
    }
)
CONFIG = replace(CHILD_CONFIG, network_rules=RULES)


def made(uid: DomainUID = UID) -> JsonObject:
    wanted = children.network_policy(uid, "nvdra", CONFIG)
    assert wanted is not None
    return wanted


def stored() -> JsonObject:
    obj: JsonObject = copy.deepcopy(children.creation_body(made()))
    obj["metadata"] |= {"uid": "u", "resourceVersion": "5", "generation": 1}
    return obj


def test_daemons_connect_to_those_of_their_domain_and_as_the_installation_says() -> None:
    daemons = {"matchLabels": {LABEL: UID}}
    ports = [{"protocol": "TCP", "port": 50000}, {"protocol": "TCP", "port": 50005}]
    assert made() == {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": f"computedomain-daemon-{UID}",
            "namespace": "nvdra",
            "labels": {LABEL: UID},
        },
        "spec": {
            "podSelector": daemons,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {"from": [{"podSelector": daemons}], "ports": ports},
                {"from": [MONITORING], "ports": [{"protocol": "TCP", "port": 8080}]},
            ],
            "egress": [
                {"to": [{"podSelector": daemons}], "ports": ports},
                {"ports": [{"protocol": "UDP", "port": 53}]},
            ],
        },
    }


def test_it_selects_the_pods_of_its_domain_and_no_others() -> None:
    for uid, other in ((UID, OTHER), (OTHER, UID)):
        daemonset = children.daemonset(uid, "nvdra", CONFIG)
        labels = daemonset["spec"]["template"]["metadata"]["labels"]
        assert made(uid)["spec"]["podSelector"] == {"matchLabels": labels}
        assert other not in str(made(uid))


def test_without_rules_there_is_no_policy() -> None:
    assert children.network_policy(UID, "nvdra", CHILD_CONFIG) is None
    spec = network_policies.network_policy(UID, "nvdra", NetworkRules())["spec"]
    assert (len(spec["ingress"]), len(spec["egress"])) == (1, 1), "that of the domain itself"


def test_rules_are_as_the_api_server_stores_them() -> None:
    """An empty selector stays: it selects all. Without it, the peer would be nobody."""
    peers = [
        {"podSelector": {"matchLabels": {}}, "namespaceSelector": {"matchExpressions": []}},
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": []}, "podSelector": None},
    ]
    rules = NetworkRules.model_validate({"ingress": [{"from": peers, "ports": [{"port": "http"}]}]})
    (_, rule) = network_policies.network_policy(UID, "nvdra", rules)["spec"]["ingress"]
    assert rule == {
        "from": [
            {"podSelector": {}, "namespaceSelector": {}},
            {"ipBlock": {"cidr": "10.0.0.0/8"}},
        ],
        "ports": [{"protocol": "TCP", "port": "http"}],
    }


def test_an_unchanged_policy_is_not_written() -> None:
    assert children.corrected(stored(), made()) is None


def in_peer(obj: Any, **change: Any) -> None:
    obj["spec"]["ingress"][0]["from"][0].update(change)


@pytest.mark.parametrize(
    "change",
    [
        lambda obj: obj["spec"]["ingress"].append({}),
        lambda obj: obj["spec"]["ingress"].pop(),
        lambda obj: obj["spec"]["ingress"][0].pop("from"),
        lambda obj: in_peer(obj, namespaceSelector={}),
        lambda obj: in_peer(obj, podSelector={}),
        lambda obj: obj["spec"]["ingress"][0]["ports"][0].update(endPort=50004),
        lambda obj: obj["spec"]["egress"][1].update(to=[{"ipBlock": {"cidr": "10.0.0.0/8"}}]),
        lambda obj: obj["spec"].update(policyTypes=["Ingress"]),
        lambda obj: obj["spec"]["podSelector"].update(
            matchExpressions=[{"key": "a", "operator": "Exists"}]
        ),
        lambda obj: obj["metadata"].update(labels={}),
    ],
)
def test_every_change_is_corrected(change: Callable[[Any], None]) -> None:
    obj = stored()
    change(obj)
    corrected = children.corrected(obj, made())
    assert corrected is not None
    assert corrected["spec"] == made()["spec"]
    assert corrected["metadata"]["labels"] == {LABEL: UID}


def test_labels_and_annotations_of_others_stay() -> None:
    obj = stored()
    obj["metadata"]["labels"]["team"] = "network"
    obj["metadata"]["annotations"] = {"a": "b"}
    assert children.corrected(obj, made()) is None


def test_a_policy_that_has_lost_its_label_is_the_domains_and_another_domains_is_not() -> None:
    obj = stored()
    obj["metadata"]["labels"] = {"a": "b"}
    assert children.belongs_to_domain(obj, made())
    obj["metadata"]["labels"] = {LABEL: OTHER}
    assert not children.belongs_to_domain(obj, made())
