"""When a channel is given, and what is said while it is not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.protocol.daemon_pods import DaemonPod
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.domains import ComputeDomain, ComputeDomainClique
from nvdra_api.types.errors import PermanentError, Reason
from nvdra_api.types.ids import ClaimUID, DomainUID, NodeName, PodUID
from nvdra_cd_plugin import readiness
from nvdra_cd_plugin.membership import Domain
from nvdra_cd_plugin.readiness import Entry, Found, Own, Refused, Standing

HERE = NodeName("node-a")
POD = PodUID("pod-1")
IP = "10.0.0.1"
DAEMON = Own((POD,), {POD: IP})
DOMAIN = Domain(DomainUID("11111111-2222-3333-4444-555555555555"), "team-a", "ring")


def entry(node: str = HERE, is_ready: bool = True, **more: Any) -> Entry:
    return Entry(NodeName(node), is_ready, **{"ip": IP, **more})


def test_a_ready_daemon_of_the_own_node_is_enough() -> None:
    peers = [entry("node-c", is_ready=False), entry("node-b", is_ready=False), entry()]
    standing = readiness.assess(peers, HERE, DAEMON)
    assert standing.is_ready
    assert standing.absent == ("node-b", "node-c")


@pytest.mark.parametrize("pod", [None, POD])
def test_an_entry_speaks_for_the_pod_that_it_names_or_that_has_its_address(
    pod: PodUID | None,
) -> None:
    assert readiness.assess([entry(pod=pod)], HERE, DAEMON).is_ready


@pytest.mark.parametrize(
    ("own", "daemon", "says"),
    [
        ([entry()], None, "has not been started"),
        ([], DAEMON, "has not joined"),
        ([entry(pod=PodUID("old"))], DAEMON, "predecessor"),
        ([entry(ip="10.0.0.9")], DAEMON, "predecessor"),
        ([entry()], Own((POD,)), "whether the entry of 10.0.0.1 is its own cannot be told"),
        ([entry(ip="")], Own((POD,)), "the entry of no address"),
        ([entry(is_ready=False)], DAEMON, "has not said READY"),
        ([entry(is_ready=False, message="waits for a quorum")], DAEMON, "waits for a quorum"),
    ],
)
def test_what_the_daemon_lacks_is_said(own: list[Entry], daemon: Any, says: str) -> None:
    standing = readiness.assess([*own, entry("node-b")], HERE, daemon)
    assert not standing.is_ready
    assert says in standing.lacks


def test_by_address_as_many_must_have_joined_as_the_domain_says() -> None:
    assert "1 of the 2 nodes" in readiness.assess([entry()], HERE, DAEMON, 2).lacks
    joined = [entry(), entry("node-b", is_ready=False)]
    assert readiness.assess(joined, HERE, DAEMON, 2).is_ready


ENTRIES = st.lists(
    st.builds(
        Entry,
        node=st.sampled_from([HERE, NodeName("node-b"), NodeName("node-c")]),
        is_ready=st.booleans(),
        pod=st.sampled_from([None, POD, PodUID("old")]),
        message=st.sampled_from(["", "starts"]),
        ip=st.sampled_from(["", IP, "10.0.0.9"]),
    ),
    unique_by=lambda each: each.node,
)


@given(ENTRIES, st.sampled_from([None, DAEMON, Own((POD,))]))
def test_peers_never_hold_the_channel_up(entries: list[Entry], daemon: Any) -> None:
    own = [each for each in entries if each.node == HERE]
    alone = readiness.assess(own, HERE, daemon)
    assert readiness.assess(entries, HERE, daemon).lacks == alone.lacks


@given(ENTRIES, st.sampled_from([None, DAEMON, Own((POD,))]))
def test_nothing_but_a_ready_entry_of_the_daemon_that_is_here_gives_it(
    entries: list[Entry], daemon: Any
) -> None:
    own = next((each for each in entries if each.node == HERE), None)
    said = own is not None and daemon is not None and _says(own, daemon)
    is_due = said and own is not None and own.is_ready
    assert readiness.assess(entries, HERE, daemon).is_ready == is_due


def _says(own: Entry, daemon: Own) -> bool:
    return own.pod == POD if own.pod else own.ip == daemon.ips.get(POD)


@given(ENTRIES)
def test_the_address_is_looked_for_where_it_alone_is_lacking(entries: list[Entry]) -> None:
    own = next((each for each in entries if each.node == HERE), None)
    is_worth_it = own is not None and own.is_ready and own.pod is None
    unknown = readiness.assess(entries, HERE, Own((POD,)))
    assert unknown.is_unproved == is_worth_it
    assert not readiness.assess(entries, HERE, None).is_unproved
    if is_worth_it and own is not None and own.ip:
        assert readiness.assess(entries, HERE, Own((POD,), {POD: own.ip})).is_ready


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
CLAIM = ClaimRef("nvdra", "d-1-daemon", ClaimUID("c-1"))
HELD = PermanentError(Reason.DEVICE_NODE_MISSING, "/proc/devices lists none", "load the module")
REFUSED = Refused(CLAIM, (POD,), HELD)


@pytest.mark.parametrize(
    ("pods", "says"),
    [
        ([], "has made no pod for this node"),
        ([pod(node="node-b")], "has made no pod for this node"),
        ([pod(is_leaving=True)], "d-1 is being deleted and has not ended yet"),
        ([pod(is_leaving=True, created="2"), pod(name="d-2")], "d-2 is starting"),
        ([pod(trouble="ImagePullBackOff: no such image")], "ImagePullBackOff: no such image"),
        ([pod()], "pod nvdra/d-1 is starting"),
        ([pod(is_over=True)], "has ended"),
        ([pod(created="1", trouble="old"), pod(created="2", name="d-2")], "d-2 is starting"),
    ],
)
def test_a_silent_daemons_pod_says_why(pods: list[DaemonPod], says: str) -> None:
    assert says in readiness.explained(SILENT, Found(tuple(pods)), HERE).lacks


def test_why_there_is_no_pod_is_said_where_it_is_known() -> None:
    found = Found((), "DaemonSet nvdra/d could not make its pod: exceeded quota")
    assert readiness.explained(SILENT, found, HERE).lacks == found.why_none


@pytest.mark.parametrize("found", [None, Found((pod(),))])
def test_a_claim_of_the_daemon_that_is_refused_here_is_why(found: Found | None) -> None:
    standing = readiness.explained(SILENT, found, HERE, REFUSED)
    assert standing.is_refused
    error = readiness.refusal(DOMAIN, HERE, standing)
    assert error.reason is Reason.DAEMON_NOT_READY
    assert "claim nvdra/d-1-daemon is refused, DeviceNodeMissing: /proc/devices" in error.message
    assert error.remedy == "load the module"


@pytest.mark.parametrize(
    "pods", [(), (pod(uid=PodUID("pod-2"), created="2"),), (pod(is_leaving=True),)]
)
def test_a_refusal_of_a_daemon_that_is_gone_is_no_news_of_its_successor(pods: Any) -> None:
    standing = readiness.explained(SILENT, Found(pods), HERE, REFUSED)
    assert "refused" not in standing.lacks
    assert not standing.is_refused
    assert readiness.refusal(DOMAIN, HERE, standing).remedy != "load the module"


def test_a_daemon_that_speaks_is_believed_over_its_pod() -> None:
    standing = readiness.assess([entry(is_ready=False, message="starts", pod=POD)], HERE, DAEMON)
    assert readiness.explained(standing, Found(()), HERE, REFUSED) == standing


def test_the_refusal_names_domain_node_lack_and_a_few_peers() -> None:
    absent = tuple(NodeName(f"node-{each}") for each in "bcdef")
    error = readiness.refusal(DOMAIN, HERE, Standing("it starts", absent))
    assert error.reason is Reason.DAEMON_NOT_READY
    assert "ComputeDomain team-a/ring on node node-a is not ready: it starts" in error.message
    assert "node-b, node-c, node-d and 2 more" in error.message


def test_cliques_and_statuses_tell_the_same() -> None:
    metadata = {"name": "x", "namespace": "n", "uid": "u"}
    daemons = [
        {
            "nodeName": "node-a",
            "cliqueID": "c.1",
            "status": "Ready",
            "podUID": POD,
            "ipAddress": IP,
        },
        {"nodeName": "node-b", "cliqueID": "c.1", "message": "starts"},
    ]
    clique = ComputeDomainClique.model_validate({"metadata": metadata, "daemons": daemons})
    assert readiness.of_clique(clique) == (
        entry(pod=POD),
        entry("node-b", is_ready=False, message="starts", ip=""),
    )
    nodes = [{"name": "node-a", "status": "Ready", "ipAddress": IP}, {"name": "node-b"}]
    domain = ComputeDomain.model_validate({"metadata": metadata, "status": {"nodes": nodes}})
    assert readiness.of_status(domain) == (entry(), entry("node-b", is_ready=False, ip=""))
