# SPDX-License-Identifier: Apache-2.0
"""When a daemon is ready, and what it lacks while it is not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.errors import PermanentError, Reason
from nvdra_api.ids import ClaimUID, DeviceName, DomainUID, NodeName, PodUID, PoolName
from nvdra_api.resource.claims import ClaimRef
from nvdra_api.v1beta1 import ComputeDomain, ComputeDomainClique
from nvdra_cd_plugin.daemon import readiness
from nvdra_cd_plugin.daemon.readiness import (
    DaemonClaimFailure,
    DaemonEntry,
    DaemonReadiness,
    OwnDaemon,
    PodLookupResult,
)
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord, DomainDeviceRecord
from nvdra_cd_plugin.domains.domain import Domain
from nvdra_runtime.claims.records import DeviceInUseError
from nvdra_runtime.computedomain.daemon_pods import DaemonPod

HERE = NodeName("node-a")
POD = PodUID("pod-1")
IP = "10.0.0.1"
DAEMON = OwnDaemon((POD,), {POD: IP})
DOMAIN = Domain(DomainUID("11111111-2222-3333-4444-555555555555"), "team-a", "ring")


def entry(node: str = HERE, is_ready: bool = True, **more: Any) -> DaemonEntry:
    return DaemonEntry(NodeName(node), is_ready, **{"ip": IP, **more})


def test_a_ready_daemon_of_the_own_node_is_enough() -> None:
    peers = [entry("node-c", is_ready=False), entry("node-b", is_ready=False), entry()]
    state = readiness.assess(peers, HERE, DAEMON)
    assert state.is_ready
    assert state.absent_peers == ("node-b", "node-c")


@pytest.mark.parametrize("pod", [None, POD])
def test_an_entry_belongs_to_the_pod_that_it_names_or_that_has_its_address(
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
        ([entry()], OwnDaemon((POD,)), "not known yet whether it wrote the entry of 10.0.0.1"),
        ([entry(ip="")], OwnDaemon((POD,)), "the entry of no address"),
        ([entry(is_ready=False)], DAEMON, "has not reported READY"),
        ([entry(is_ready=False, message="waits for a quorum")], DAEMON, "waits for a quorum"),
    ],
)
def test_the_message_says_what_is_missing(own: list[DaemonEntry], daemon: Any, says: str) -> None:
    state = readiness.assess([*own, entry("node-b")], HERE, daemon)
    assert not state.is_ready
    assert says in state.missing


def test_without_dns_names_as_many_nodes_must_have_joined_as_the_domain_says() -> None:
    assert "1 of the 2 nodes" in readiness.assess([entry()], HERE, DAEMON, 2).missing
    joined = [entry(), entry("node-b", is_ready=False)]
    assert readiness.assess(joined, HERE, DAEMON, 2).is_ready


ENTRIES = st.lists(
    st.builds(
        DaemonEntry,
        node=st.sampled_from([HERE, NodeName("node-b"), NodeName("node-c")]),
        is_ready=st.booleans(),
        pod=st.sampled_from([None, POD, PodUID("old")]),
        message=st.sampled_from(["", "starts"]),
        ip=st.sampled_from(["", IP, "10.0.0.9"]),
    ),
    unique_by=lambda each: each.node,
)


@given(ENTRIES, st.sampled_from([None, DAEMON, OwnDaemon((POD,))]))
def test_peers_never_delay_the_channel(entries: list[DaemonEntry], daemon: Any) -> None:
    own = [each for each in entries if each.node == HERE]
    alone = readiness.assess(own, HERE, daemon)
    assert readiness.assess(entries, HERE, daemon).missing == alone.missing


@given(ENTRIES, st.sampled_from([None, DAEMON, OwnDaemon((POD,))]))
def test_only_a_ready_entry_of_this_nodes_daemon_gives_the_channel(
    entries: list[DaemonEntry], daemon: Any
) -> None:
    own = next((each for each in entries if each.node == HERE), None)
    said = own is not None and daemon is not None and _says(own, daemon)
    is_due = said and own is not None and own.is_ready
    assert readiness.assess(entries, HERE, daemon).is_ready == is_due


def _says(own: DaemonEntry, daemon: OwnDaemon) -> bool:
    return own.pod == POD if own.pod else own.ip == daemon.ips.get(POD)


@given(ENTRIES)
def test_the_state_is_unverified_if_only_the_address_is_missing(entries: list[DaemonEntry]) -> None:
    own = next((each for each in entries if each.node == HERE), None)
    is_worth_it = own is not None and own.is_ready and own.pod is None
    unknown = readiness.assess(entries, HERE, OwnDaemon((POD,)))
    assert unknown.is_unverified == is_worth_it
    assert not readiness.assess(entries, HERE, None).is_unverified
    if is_worth_it and own is not None and own.ip:
        assert readiness.assess(entries, HERE, OwnDaemon((POD,), {POD: own.ip})).is_ready


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


SILENT = DaemonReadiness("it has not joined the domain yet")
CLAIM = ClaimRef("nvdra", "d-1-daemon", ClaimUID("c-1"))
HELD = PermanentError(Reason.DEVICE_NODE_MISSING, "/proc/devices lists none", "load the module")
REFUSED = DaemonClaimFailure(CLAIM, (POD,), HELD)


@pytest.mark.parametrize(
    ("pods", "says"),
    [
        ([], "has made no pod for this node"),
        ([pod(node="node-b")], "has made no pod for this node"),
        ([pod(is_terminating=True)], "d-1 is being deleted and has not ended yet"),
        ([pod(is_terminating=True, created="2"), pod(name="d-2")], "d-2 is starting"),
        ([pod(problem="ImagePullBackOff: no such image")], "ImagePullBackOff: no such image"),
        ([pod()], "pod nvdra/d-1 is starting"),
        ([pod(running_since="2026-01-01T00:00:00Z")], "d-1 runs and has not joined the domain yet"),
        ([pod(is_finished=True)], "has ended"),
        ([pod(created="1", problem="old"), pod(created="2", name="d-2")], "d-2 is starting"),
    ],
)
def test_the_pod_of_a_silent_daemon_says_why(pods: list[DaemonPod], says: str) -> None:
    assert says in readiness.explain(SILENT, PodLookupResult(tuple(pods)), HERE).missing


def test_the_reason_for_a_missing_pod_is_named_if_known() -> None:
    found = PodLookupResult((), "DaemonSet nvdra/d could not make its pod: exceeded quota")
    assert readiness.explain(SILENT, found, HERE).missing == found.missing_reason


@pytest.mark.parametrize("found", [None, PodLookupResult((pod(),))])
def test_a_failed_claim_of_the_daemon_is_the_reason(found: PodLookupResult | None) -> None:
    state = readiness.explain(SILENT, found, HERE, REFUSED)
    assert state.has_claim_failed
    error = readiness.not_ready_error(DOMAIN, HERE, state)
    assert error.reason is Reason.DAEMON_NOT_READY
    assert "claim nvdra/d-1-daemon is refused, DeviceNodeMissing: /proc/devices" in error.message
    assert error.remedy == "load the module"


def test_who_holds_the_daemons_device_is_no_matter_of_the_domains_namespace() -> None:
    device = DomainDeviceRecord(
        request="r", pool=PoolName(HERE), device=DeviceName("daemon-0"), kind="daemon"
    )
    holder = DomainClaimRecord(
        namespace="nvdra",
        name="secret",
        uid=ClaimUID("c-2"),
        domain=DomainUID("d-2"),
        devices=(device,),
    )
    held = DeviceInUseError(CLAIM, "daemon-0", holder, ("daemon-0",))
    failure = DaemonClaimFailure(CLAIM, (POD,), held)
    for namespace, is_named in ((DOMAIN.namespace, False), ("nvdra", True)):
        state = readiness.explain(SILENT, None, HERE, failure, namespace)
        assert "is refused, DeviceInUse: daemon-0 is held by " in state.missing
        assert ("claim nvdra/secret" in state.missing) == is_named


@pytest.mark.parametrize(
    "pods", [(), (pod(uid=PodUID("pod-2"), created="2"),), (pod(is_terminating=True),)]
)
def test_a_failed_claim_of_a_predecessor_is_not_the_reason(pods: Any) -> None:
    state = readiness.explain(SILENT, PodLookupResult(pods), HERE, REFUSED)
    assert "refused" not in state.missing
    assert not state.has_claim_failed
    assert readiness.not_ready_error(DOMAIN, HERE, state).remedy != "load the module"


def test_the_daemons_own_entry_comes_before_its_pod() -> None:
    state = readiness.assess([entry(is_ready=False, message="starts", pod=POD)], HERE, DAEMON)
    assert readiness.explain(state, PodLookupResult(()), HERE, REFUSED) == state


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (None, "its process has ended"),
        (PodLookupResult((pod(),)), "its process has ended"),
        (PodLookupResult((pod(problem="CrashLoopBackOff: 40s"),)), "CrashLoopBackOff: 40s"),
        (PodLookupResult((pod(is_finished=True),)), "d-1 has ended"),
    ],
)
def test_a_dead_daemon_gives_no_channel_and_its_pod_may_say_why(
    found: PodLookupResult | None, says: str
) -> None:
    state = readiness.assess([entry()], HERE, DAEMON)
    dead = readiness.outdated(state, "its process has ended")
    assert not dead.is_ready
    assert says in readiness.explain(dead, found, HERE).missing


def test_the_error_names_domain_node_problem_and_a_few_peers() -> None:
    absent = tuple(NodeName(f"node-{each}") for each in "bcdef")
    error = readiness.not_ready_error(DOMAIN, HERE, DaemonReadiness("it starts", absent))
    assert error.reason is Reason.DAEMON_NOT_READY
    assert "ComputeDomain team-a/ring on node node-a is not ready: it starts" in error.message
    assert "node-b, node-c, node-d and 2 more" in error.message


def test_cliques_and_statuses_give_the_same_entries() -> None:
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
    assert readiness.clique_entries(clique) == (
        entry(pod=POD),
        entry("node-b", is_ready=False, message="starts", ip=""),
    )
    nodes = [{"name": "node-a", "status": "Ready", "ipAddress": IP}, {"name": "node-b"}]
    domain = ComputeDomain.model_validate({"metadata": metadata, "status": {"nodes": nodes}})
    assert readiness.status_entries(domain) == (entry(), entry("node-b", is_ready=False, ip=""))
