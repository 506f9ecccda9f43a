# SPDX-License-Identifier: Apache-2.0
"""Which claims may get a channel or a daemon's device."""

from typing import Any

import pytest
from nvdra_api.errors import PermanentError, Reason
from nvdra_api.ids import ClaimUID, DomainUID, NodeName
from nvdra_api.resource.claims import ClaimRef
from nvdra_api.v1beta1 import ComputeDomain
from nvdra_cd_plugin.domains import admission
from nvdra_cd_plugin.domains.domain import Domain, domain_of

UID = DomainUID("11111111-2222-3333-4444-555555555555")
NODE = NodeName("node-a")
DOMAIN = Domain(UID, "team-a", "ring")


def ref(namespace: str) -> ClaimRef:
    return ClaimRef(namespace, "c", ClaimUID("u"))


def test_a_workloads_claim_must_be_in_the_domains_namespace() -> None:
    admission.check_channel_namespace(ref("team-a"), DOMAIN)
    with pytest.raises(PermanentError) as error:
        admission.check_channel_namespace(ref("team-b"), DOMAIN)
    assert error.value.reason is Reason.NAMESPACE_MISMATCH
    assert "team-a" not in error.value.message, "the message names another tenant's namespace"


def test_a_daemons_claim_must_be_in_a_namespace_of_daemons() -> None:
    admission.check_daemon_namespace(ref("nvdra"), ("nvdra", "old"))
    with pytest.raises(PermanentError, match="nvdra, old") as error:
        admission.check_daemon_namespace(ref("team-a"), ("nvdra", "old"))
    assert error.value.reason is Reason.NAMESPACE_MISMATCH


@pytest.mark.parametrize(
    ("domain_mode", "requested", "count"),
    [("Single", "Single", 1), ("Single", "All", 1), ("All", "Single", 1), ("All", "All", 64)],
)
def test_the_domain_limits_how_many_channels_a_claim_gets(
    domain_mode: str, requested: str, count: int
) -> None:
    spec = {"channel": {"resourceClaimTemplate": {"name": "t"}, "allocationMode": domain_mode}}
    obj = {"metadata": {"name": "d", "namespace": "n", "uid": UID}, "spec": spec}
    domain = domain_of(ComputeDomain.model_validate(obj))
    assert admission.channel_count(domain, requested, 64) == count


def pod(**changes: Any) -> dict[str, Any]:
    owner = {"kind": "DaemonSet", "name": f"computedomain-daemon-{UID}", "controller": True}
    fields = {
        "labels": {"resource.nvidia.com/computeDomain": UID},
        "owners": [owner],
        "node": NODE,
        **changes,
    }
    metadata = {"name": "d-1", "labels": fields["labels"], "ownerReferences": fields["owners"]}
    return {"metadata": metadata, "spec": {"nodeName": fields["node"]}}


def test_the_domains_own_daemon_is_admitted() -> None:
    admission.check_daemon_pod(ref("nvdra"), UID, pod(), NODE)


@pytest.mark.parametrize(
    ("user", "says"),
    [
        (None, "no pod that is there"),
        (pod(labels={}), "does not have the domain's label"),
        (pod(labels=None), "does not have the domain's label"),
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
def test_every_other_pod_is_refused(user: Any, says: str) -> None:
    with pytest.raises(PermanentError, match=says) as error:
        admission.check_daemon_pod(ref("nvdra"), UID, user, NODE)
    assert error.value.reason is Reason.NOT_A_DAEMON
