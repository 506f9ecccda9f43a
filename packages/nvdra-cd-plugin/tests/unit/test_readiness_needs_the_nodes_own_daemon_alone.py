"""When a channel is given, and what is said while it is not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.protocol.daemon_pods import DaemonPod
from nvdra_api.types.domains import ComputeDomain, ComputeDomainClique
from nvdra_api.types.errors import Reason
from nvdra_api.types.ids import DomainUID, NodeName, PodUID
from nvdra_cd_plugin import readiness
from nvdra_cd_plugin.membership import Domain
from nvdra_cd_plugin.readiness import Entry, Standing

HERE = NodeName("node-a")
POD = PodUID("pod-1")
DOMAIN = Domain(DomainUID("11111111-2222-3333-4444-555555555555"), "team-a", "ring")


def entry(node: str = HERE, is_ready: bool = True, **more: Any) -> Entry:
    return Entry(NodeName(node), is_ready, **more)


def test_a_ready_daemon_of_the_own_node_is_enough() -> None:
    peers = [entry("node-c", is_ready=False), entry("node-b", is_ready=False), entry()]
    standing = readiness.assess(peers, HERE, (POD,))
    assert standing.is_ready
    assert standing.absent == ("node-b", "node-c")


@pytest.mark.parametrize("pod", [None, POD])
def test_an_entry_speaks_for_the_pod_that_it_names_or_for_any(pod: PodUID | None) -> None:
    assert readiness.assess([entry(pod=pod)], HERE, (POD,)).is_ready


@pytest.mark.parametrize(
    ("own", "daemon", "says"),
    [
        ([entry()], None, "has not been started"),
        ([], (POD,), "has not joined"),
        ([entry(pod=PodUID("old"))], (POD,), "predecessor"),
        ([entry(is_ready=False)], (POD,), "has not said READY"),
        ([entry(is_ready=False, message="waits for a quorum")], (POD,), "waits for a quorum"),
    ],
)
def test_what_the_daemon_lacks_is_said(own: list[Entry], daemon: Any, says: str) -> None:
    standing = readiness.assess([*own, entry("node-b")], HERE, daemon)
    assert not standing.is_ready
    assert says in standing.lacks


def test_by_address_as_many_must_have_joined_as_the_domain_says() -> None:
    assert "1 of the 2 nodes" in readiness.assess([entry()], HERE, (POD,), 2).lacks
    joined = [entry(), entry("node-b", is_ready=False)]
    assert readiness.assess(joined, HERE, (POD,), 2).is_ready


ENTRIES = st.lists(
    st.builds(
        Entry,
        node=st.sampled_from([HERE, NodeName("node-b"), NodeName("node-c")]),
        is_ready=st.booleans(),
        pod=st.sampled_from([None, POD, PodUID("old")]),
        message=st.sampled_from(["", "starts"]),
    ),
    unique_by=lambda each: each.node,
)


@given(ENTRIES, st.sampled_from([None, (POD,)]))
def test_peers_never_hold_the_channel_up(entries: list[Entry], daemon: Any) -> None:
    own = [each for each in entries if each.node == HERE]
    alone = readiness.assess(own, HERE, daemon)
    assert readiness.assess(entries, HERE, daemon).lacks == alone.lacks


@given(ENTRIES, st.sampled_from([None, (POD,)]))
def test_nothing_but_a_ready_entry_of_the_daemon_that_is_here_gives_it(
    entries: list[Entry], daemon: Any
) -> None:
    own = next((each for each in entries if each.node == HERE), None)
    is_due = daemon is not None and own is not None and own.is_ready and own.pod in (None, POD)
    assert readiness.assess(entries, HERE, daemon).is_ready == is_due


def pod(**more: Any) -> DaemonPod:
    facts: dict[str, Any] = {
        "name": "d-1",
        "namespace": "nvdra",
        "uid": POD,
        "domain": DOMAIN.uid,
        "node": HERE,
        **more,
    }
    return DaemonPod(**facts)


SILENT = Standing("it has not joined the domain yet")


@pytest.mark.parametrize(
    ("pods", "says"),
    [
        ([], "has made no pod for this node"),
        ([pod(node="node-b")], "has made no pod for this node"),
        ([pod(is_leaving=True)], "has made no pod for this node"),
        ([pod(trouble="ImagePullBackOff: no such image")], "ImagePullBackOff: no such image"),
        ([pod()], "pod nvdra/d-1 is starting"),
        ([pod(is_over=True)], "has ended"),
        ([pod(created="1", trouble="old"), pod(created="2", name="d-2")], "d-2 is starting"),
    ],
)
def test_a_silent_daemons_pod_says_why(pods: list[DaemonPod], says: str) -> None:
    assert says in readiness.explained(SILENT, pods, HERE).lacks


def test_a_daemon_that_speaks_is_believed_over_its_pod() -> None:
    standing = readiness.assess([entry(is_ready=False, message="starts", pod=POD)], HERE, (POD,))
    assert readiness.explained(standing, [], HERE) == standing


def test_the_refusal_names_domain_node_lack_and_a_few_peers() -> None:
    absent = tuple(NodeName(f"node-{each}") for each in "bcdef")
    error = readiness.refusal(DOMAIN, HERE, Standing("it starts", absent))
    assert error.reason is Reason.DAEMON_NOT_READY
    assert "ComputeDomain team-a/ring on node node-a is not ready: it starts" in error.message
    assert "node-b, node-c, node-d and 2 more" in error.message


def test_cliques_and_statuses_tell_the_same() -> None:
    metadata = {"name": "x", "namespace": "n", "uid": "u"}
    daemons = [
        {"nodeName": "node-a", "cliqueID": "c.1", "status": "Ready", "podUID": POD},
        {"nodeName": "node-b", "cliqueID": "c.1", "message": "starts"},
    ]
    clique = ComputeDomainClique.model_validate({"metadata": metadata, "daemons": daemons})
    assert readiness.of_clique(clique) == (
        entry(pod=POD),
        entry("node-b", is_ready=False, message="starts"),
    )
    nodes = [{"name": "node-a", "status": "Ready"}, {"name": "node-b"}]
    domain = ComputeDomain.model_validate({"metadata": metadata, "status": {"nodes": nodes}})
    assert readiness.of_status(domain) == (entry(), entry("node-b", is_ready=False))
