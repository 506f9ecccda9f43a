"""Namespaces, modes and pods: who is let in."""

from typing import Any

import pytest
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.domains import ComputeDomain
from nvdra_api.types.errors import PermanentError, Reason
from nvdra_api.types.ids import ClaimUID, DomainUID, NodeName
from nvdra_cd_plugin import membership
from nvdra_cd_plugin.membership import Domain

UID = DomainUID("11111111-2222-3333-4444-555555555555")
NODE = NodeName("node-a")
DOMAIN = Domain(UID, "team-a", "ring")


def ref(namespace: str) -> ClaimRef:
    return ClaimRef(namespace, "c", ClaimUID("u"))


def test_a_workloads_claim_is_of_the_domains_namespace() -> None:
    membership.check_namespace(ref("team-a"), DOMAIN)
    with pytest.raises(PermanentError) as refused:
        membership.check_namespace(ref("team-b"), DOMAIN)
    assert refused.value.reason is Reason.NAMESPACE_MISMATCH
    assert "team-a" not in refused.value.message, "another tenant's name is told"


def test_a_daemons_claim_is_where_daemons_are() -> None:
    membership.check_managed(ref("nvdra"), ("nvdra", "old"))
    with pytest.raises(PermanentError, match="nvdra, old") as refused:
        membership.check_managed(ref("team-a"), ("nvdra", "old"))
    assert refused.value.reason is Reason.NAMESPACE_MISMATCH


@pytest.mark.parametrize(
    ("of_domain", "asked", "count"),
    [("Single", "Single", 1), ("Single", "All", 1), ("All", "Single", 1), ("All", "All", 64)],
)
def test_the_domain_caps_what_a_claim_asks_for(of_domain: str, asked: str, count: int) -> None:
    spec = {"channel": {"resourceClaimTemplate": {"name": "t"}, "allocationMode": of_domain}}
    obj = {"metadata": {"name": "d", "namespace": "n", "uid": UID}, "spec": spec}
    domain = membership.read(ComputeDomain.model_validate(obj))
    assert membership.channel_count(domain, asked, 64) == count


def pod(**changes: Any) -> dict[str, Any]:
    owner = {"kind": "DaemonSet", "name": f"computedomain-daemon-{UID}", "controller": True}
    facts = {
        "labels": {"resource.nvidia.com/computeDomain": UID},
        "owners": [owner],
        "node": NODE,
        **changes,
    }
    metadata = {"name": "d-1", "labels": facts["labels"], "ownerReferences": facts["owners"]}
    return {"metadata": metadata, "spec": {"nodeName": facts["node"]}}


def test_the_domains_own_daemon_is_let_in() -> None:
    membership.check_pod(ref("nvdra"), UID, pod(), NODE)


@pytest.mark.parametrize(
    ("user", "says"),
    [
        (None, "no pod that is there"),
        (pod(labels={}), "not labelled"),
        (pod(labels=None), "not labelled"),
        (pod(node="node-b"), "not on this node"),
        (pod(owners=None), "not of DaemonSet"),
        (pod(owners=[{"kind": "DaemonSet", "name": "x", "controller": True}]), "not of DaemonSet"),
        (
            pod(owners=[{"kind": "DaemonSet", "name": f"computedomain-daemon-{UID}"}]),
            "not of DaemonSet",
        ),
        (
            pod(
                owners=[{"kind": "Job", "name": f"computedomain-daemon-{UID}", "controller": True}]
            ),
            "not of DaemonSet",
        ),
    ],
)
def test_any_other_pod_is_not(user: Any, says: str) -> None:
    with pytest.raises(PermanentError, match=says) as refused:
        membership.check_pod(ref("nvdra"), UID, user, NODE)
    assert refused.value.reason is Reason.NOT_A_DAEMON


@pytest.mark.parametrize("text", [UID, "0a0a0a0a-0000-4000-8000-00000000000a"])
def test_a_uid_is_one(text: str) -> None:
    assert membership.is_uid(text)


@pytest.mark.parametrize(
    "text", ["", ".", "..", "../x", "x", f"{UID}/", f"/{UID}", f"{UID}\n", UID.upper() + "A"]
)
def test_nothing_else_is(text: str) -> None:
    assert not membership.is_uid(text)
