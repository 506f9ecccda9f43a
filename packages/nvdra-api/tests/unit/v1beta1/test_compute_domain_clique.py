# SPDX-License-Identifier: Apache-2.0
"""ComputeDomainCliques, with entries of this driver's and of the reference driver's daemons."""

from nvdra_api.ids import CliqueID, NodeName, PodUID
from nvdra_api.v1beta1 import ComputeDomainClique
from nvdra_api.v1beta1.compute_domain import Readiness
from nvdra_api.v1beta1.compute_domain_clique import ComputeDomainDaemonInfo

CLIQUE = CliqueID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2")


def entry(node: str, index: int, **more: str) -> dict[str, object]:
    return {"nodeName": node, "ipAddress": "10.4.1.7", "cliqueID": CLIQUE, "index": index, **more}


def test_a_clique_may_have_daemons_of_both_drivers() -> None:
    ours = entry("node-a", 0, status="NotReady", podUID="0a", message="IMEX is starting")
    clique = ComputeDomainClique.model_validate(
        {"metadata": {"name": f"uid.{CLIQUE}"}, "daemons": [ours, entry("node-b", 1)]}
    )

    assert clique.daemons[0] == ComputeDomainDaemonInfo(
        node_name=NodeName("node-a"),
        ip_address="10.4.1.7",
        clique_id=CLIQUE,
        index=0,
        pod_uid=PodUID("0a"),
        message="IMEX is starting",
    )
    assert clique.daemons[1].pod_uid is None
    assert clique.daemons[1].status == Readiness.NOT_READY


def test_a_clique_without_daemons_is_empty() -> None:
    assert ComputeDomainClique.model_validate({"metadata": {"name": "x"}}).daemons == ()
