# SPDX-License-Identifier: Apache-2.0
"""All processes that work on a domain write one trace, whose id is the domain's UID.

Controller, plugins and daemons do not pass trace contexts. The traces are received over OTLP, as
the
chart configures it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from nvdra_api.ids import ClaimUID, DomainUID, NodeName
from nvdra_runtime.telemetry import trace_ids
from nvdra_testing.cluster import compute_domains, workloads
from nvdra_testing.cluster.compute_domains import Domain
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.telemetry.otlp_receiver import Receiver, Span
from nvdra_testing.telemetry.span_tree import children, only_span, orphans

BOTH = ("node-1", "node-2")
CONTROLLER, PLUGIN, DAEMON = "nvdra-cd-controller", "nvdra-cd-plugin", "nvdra-imex-daemon"
OF_PLUGIN = {"member", "label node", "schedule daemon", "wait domain", "prepare"}
OF_DAEMON = {"start daemon", "join clique", "start imex", "imex ready"}

EXPORT_S = 20
QUIET_S = 15
"""Longer than the export delay of spans, which is 5 s; nothing more arrives after that."""
CONFLICT = ": 409: Operation cannot be fulfilled on "
"""Others write the same objects: Kubernetes counts pods in the status of a DaemonSet, for instance.
If that comes between, we write again.
"""
LATE_S = 60


def test_a_domain_over_two_nodes_is_one_tree_from_six_processes(
    rack: Cluster, team: Kubectl, rack_collector: Receiver
) -> None:
    uid = compute_domains.create_domain(team, "ring")
    team.apply(workloads.template("one", workloads.gpus()))
    for node in BOTH:
        pod = compute_domains.channel_pod(node, compute_domains.template_name("ring"), node)
        pod["spec"]["resourceClaims"].append({"name": "one", "resourceClaimTemplateName": "one"})
        pod["spec"]["containers"][0]["resources"]["claims"].append({"name": "one"})
        team.apply(pod)
    team.wait_running(*BOTH)
    compute_domains.wait_ready(team, "ring", 2)
    claims = {node: workloads.claims_of(team, node) for node in BOTH}
    team.delete("pod", *BOTH)
    spans = of_deleted(rack, team, rack_collector, uid)

    tree(spans, uid, BOTH)
    assert {process(span) for span in spans} >= {
        (program, node) for program in (PLUGIN, DAEMON) for node in BOTH
    }
    assert {span.resource["service.name"] for span in spans} == {CONTROLLER, PLUGIN, DAEMON}
    failed = [span.message for span in spans if span.is_error]
    assert [each for each in failed if CONFLICT not in each] == []
    root = only_span(spans, "compute domain")
    assert {"reconcile", "teardown"} <= {span.name for span in children(spans, root)}
    for member in (span for span in spans if span.name == "member"):
        parts = children(spans, member)
        assert {span.name for span in parts if process(span)[0] == PLUGIN} == OF_PLUGIN - {"member"}
        assert {span.name for span in parts if process(span)[0] == DAEMON} == OF_DAEMON
        assert {process(span)[1] for span in parts} == {process(member)[1]}
        assert counted(parts, "prepare") == 2  # the daemon's claim, and the channel's

    for node in BOTH:
        channel, gpu = claims[node]
        told = linked(rack_collector, channel, uid, node)
        assert {process(span) for span in told} == {(PLUGIN, node)}
        (claim_link,) = only_of(spans, "member", node).links
        root_id = trace_ids.claim_root_span_id(ClaimUID(channel["metadata"]["uid"]), NodeName(node))
        assert (claim_link.trace_id, claim_link.span_id) == (trace_of(channel), root_id)
        held = received(rack_collector, gpu["metadata"]["uid"], "claim", "unprepare")
        assert orphans(held) == []
        assert {process(span) for span in held} == {("nvdra-gpu-plugin", node)}


def test_nothing_is_told_twice_by_who_was_restarted_nor_for_who_comes_back(
    rack: Cluster, team: Kubectl, rack_collector: Receiver
) -> None:
    node = "node-1"
    uid = compute_domains.create_domain(team, "ring")
    team.apply(compute_domains.channel_pod("first", compute_domains.template_name("ring"), node))
    team.wait_running("first")
    compute_domains.wait_ready(team, "ring", 1)
    received(rack_collector, uid, "compute domain", "member")

    rack.driver_namespace.delete("pod", "-l", compute_domains.CONTROLLER_SELECTOR)
    rack.driver_namespace.wait(lambda: None if all_ready(rack) else "not", "another controller", 60)
    rack.restart_plugin(node)
    team.delete("pod", "first")
    team.wait(
        lambda: (
            str(compute_domains.node_indexes(team, "ring"))
            if compute_domains.node_indexes(team, "ring")
            else None
        ),
        "the new controller to see the node leave",
    )
    team.apply(compute_domains.channel_pod("second", compute_domains.template_name("ring"), node))
    team.wait_running("second")
    compute_domains.wait_ready(team, "ring", 1)
    team.delete("pod", "second")
    spans = of_deleted(rack, team, rack_collector, uid)

    tree(spans, uid, [node])
    # What happened twice is there twice, below the one member: two claims, two daemons.
    for name in ("label node", "schedule daemon", "wait domain", "start daemon", "imex ready"):
        assert counted(children(spans, only_span(spans, "member")), name) == 2, name
    controllers = {s.resource["k8s.pod.uid"] for s in spans if process(s)[0] == CONTROLLER}
    assert len(controllers) == 2


@pytest.mark.timeout(400, func_only=True)
def test_a_domain_that_never_forms_has_its_root_when_it_is_late_and_leaves_no_orphan(
    rack: Cluster, team: Kubectl, rack_collector: Receiver, dumb: None
) -> None:
    uid = compute_domains.create_domain(team, "ring", nodes=2)
    for node in BOTH:
        team.apply(compute_domains.channel_pod(node, compute_domains.template_name("ring"), node))
    late = received(rack_collector, uid, "compute domain", timeout_s=LATE_S + 30)
    root = only_span(late, "compute domain")
    assert LATE_S <= root.seconds < LATE_S + 10
    assert root.is_error
    assert root.attributes["nvdra.outcome"] == "retryable"

    for name in BOTH:
        team.run("delete", "pod", name, "--wait=false")
    spans = of_deleted(rack, team, rack_collector, uid)
    tree(spans, uid, BOTH)
    for node, other in (BOTH, BOTH[::-1]):
        assert only_of(spans, "member", node).attributes["error.type"] == "DaemonNotReady"
        waits = [span for span in spans if (span.name, process(span)[1]) == ("wait domain", node)]
        first = min(waits, key=lambda span: span.start_ns)
        assert first.attributes["error.type"] == "DaemonNotReady"
        assert "INIT_GPU" in str(first.attributes["nvdra.lacks"])
        lists = [event.attributes["nvdra.absent_peers"] for event in first.events]
        assert lists[-1] == (other,)
        assert all(before != after for before, after in pairwise(lists))


@pytest.fixture
def dumb(rack: Cluster) -> Iterator[None]:
    """No IMEX reports READY."""
    with compute_domains.dumb_imex(rack):
        yield


def tree(spans: Sequence[Span], uid: str, nodes: Sequence[str]) -> None:
    """Check that the spans are one tree: a root, a member for each node, and no duplicates."""
    domain = DomainUID(uid)
    assert orphans(spans) == []
    (root,) = (span for span in spans if not span.parent_id)
    assert (root.name, root.span_id) == ("compute domain", trace_ids.domain_root_span_id(domain))
    written = Counter(span.span_id for span in spans)
    assert {span.name for span in spans if written[span.span_id] > 1} == set()
    found = sorted((span.span_id, span.parent_id) for span in spans if span.name == "member")
    wanted = [trace_ids.member_span_id(domain, NodeName(node)) for node in nodes]
    assert found == sorted((each, root.span_id) for each in wanted)


def of_deleted(rack: Cluster, team: Kubectl, collector: Receiver, uid: str) -> list[Span]:
    """Delete the domain, and return its whole trace once nothing is left of it."""
    team.delete("computedomain", "ring")
    Domain(rack, uid).wait_gone()
    compute_domains.wait_released(rack)
    received(collector, uid, "compute domain", "teardown")
    return collector.wait_quiet(trace_ids.trace_id(uid), QUIET_S)


def received(collector: Receiver, uid: str, *names: str, timeout_s: float = EXPORT_S) -> list[Span]:
    """Wait until an object's trace has spans of all these names, and return it."""
    return collector.wait(
        lambda spans: set(names) <= {span.name for span in spans},
        trace_id=trace_ids.trace_id(uid),
        timeout_s=timeout_s,
    )


def linked(collector: Receiver, claim: workloads.Manifest, uid: str, node: str) -> Sequence[Span]:
    """The trace of a channel claim, after checking its link to the node's membership."""
    told = received(collector, claim["metadata"]["uid"], "claim", "wait domain", "unprepare")
    (link,) = only_span(told, "wait domain").links
    member = trace_ids.member_span_id(DomainUID(uid), NodeName(node))
    assert (link.trace_id, link.span_id) == (trace_ids.trace_id(uid), member)
    assert link.attributes["nvdra.link"] == "domain"
    assert orphans(told) == []
    return told


def only_of(spans: Sequence[Span], name: str, node: str) -> Span:
    """The only span of that name from that node."""
    return only_span([span for span in spans if process(span)[1] == node], name)


def counted(spans: Sequence[Span], name: str) -> int:
    return sum(span.name == name for span in spans)


def process(span: Span) -> tuple[str, str]:
    """The program and the node that wrote a span."""
    return str(span.resource["service.name"]), str(span.resource["k8s.node.name"])


def trace_of(claim: workloads.Manifest) -> str:
    return trace_ids.trace_id(claim["metadata"]["uid"])


def all_ready(rack: Cluster) -> bool:
    states = compute_domains.controller_pods(rack)
    return bool(states) and all(states.values())
