"""What a real kubelet does around the calls: the second driver is told how to behave, and counts.

A kubelet looks at a pod whose prepare failed again only 60 to 90 s later, or as soon as the pod
changes: `insist` changes it.
"""

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import by_hand
import pytest
import second
import workloads
from cluster import Cluster
from kubectl import Kubectl
from prepares import FAILED, LOOP_S, SLACK_S, begin, insist, is_refused, wait_event
from workloads import Manifest

from e2e.second_driver.orders import DRIVER, Desk

NODE, OTHER_NODE = "node-2", "node-1"
CALL_S = 45
"""The kubelet's deadline for a call."""

UNDER_WAY_S = 3
"""Longer than a call of the kubelet's that is answered at once."""

HANGING = "hanging"
"""A pod, its claim's name too, whose prepare is not answered."""

MOST = 256
"""Consumers that a claim can be reserved for."""

ABSENT = "absent.example.com"
"""A driver that nobody runs."""

pytestmark = pytest.mark.timeout(LOOP_S + CALL_S + 3 * SLACK_S, func_only=True)


@pytest.fixture(scope="module")
def space(cluster: Cluster) -> Iterator[Kubectl]:
    """One namespace for all of it."""
    cluster.kubectl.apply(by_hand.device_class(DRIVER))
    with cluster.kubectl.fresh_namespace() as kubectl:
        yield kubectl
    cluster.kubectl.delete("deviceclass", DRIVER)


@pytest.fixture(scope="module")
def desk(
    cluster: Cluster, space: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Desk]:
    """The second driver at work on one node; a prepare hangs there from the start."""
    folder: Path = tmp_path_factory.mktemp("second")
    with second.running(cluster, NODE, folder) as desk:
        desk.block(f"prepare {HANGING}")
        begin(space, HANGING, by_hand.request())
        yield desk
        desk.forgive_all()
        space.run("delete", "pods", "--all")  # they could not go without the driver


@pytest.mark.protocol("P9", "P11")
def test_a_failed_prepare_says_why_and_is_repeated(space: Kubectl, desk: Desk) -> None:
    desk.fail("prepare failing", "no thing today")
    begin(space, "failing", by_hand.request())
    wait_event(space, "failing", "no thing today")
    assert not is_running(space, "failing")
    desk.forgive("prepare failing")
    insist(space, "failing")
    assert desk.calls("failing").count("prepare") >= 2
    assert second.seen(space, "failing") == given(space, "failing")
    space.delete("pod", "failing")


@pytest.mark.protocol("P10")
def test_a_prepare_that_is_not_answered_is_given_up_and_repeated(
    space: Kubectl, desk: Desk
) -> None:
    wait_event(space, HANGING, "DeadlineExceeded", CALL_S + SLACK_S)
    assert not is_running(space, HANGING)
    desk.forgive(f"prepare {HANGING}")
    insist(space, HANGING)
    assert second.seen(space, HANGING) == given(space, HANGING)


@pytest.mark.protocol("P16", "P19")
def test_a_shared_claim_is_prepared_once_and_taken_back_after_its_last_pod(
    space: Kubectl, desk: Desk
) -> None:
    space.apply(workloads.claim("shared", by_hand.request()))
    for name in ("one", "two"):
        space.apply(workloads.pod(name, claims=["shared"]))
        space.wait_running(name)
    space.apply(workloads.claim("new", by_hand.request()))
    space.apply(workloads.pod("three", claims=["shared", "new"]))
    space.wait_running("three")
    assert desk.calls("shared") == ["prepare"]
    assert desk.calls("new") == ["prepare"]
    space.delete("pod", "one", "three")
    assert desk.calls("shared") == ["prepare"]
    assert desk.calls("new") == ["prepare", "unprepare"]
    space.delete("pod", "two")
    assert desk.calls("shared") == ["prepare", "unprepare"]


@pytest.mark.protocol("P17")
def test_a_claim_that_no_container_uses_is_prepared(space: Kubectl, desk: Desk) -> None:
    space.apply(workloads.claim("unused", by_hand.request()))
    space.apply(workloads.pod("idler", claims=["unused"], containers={"main": []}))
    space.wait_running("idler")
    assert desk.calls("unused") == ["prepare"]
    assert second.seen(space, "idler") == set()
    space.delete("pod", "idler")
    assert desk.calls("unused") == ["prepare", "unprepare"]


@pytest.mark.protocol("P21")
def test_each_container_gets_the_requests_that_it_names(space: Kubectl, desk: Desk) -> None:
    space.apply(workloads.claim("pair", by_hand.request("left"), by_hand.request("right")))
    containers = {"l": ["pair/left"], "r": ["pair/right"], "both": ["pair"], "none": []}
    space.apply(workloads.pod("apart", claims=["pair"], containers=containers))
    space.wait_running("apart")
    left, right = given(space, "pair", "left"), given(space, "pair", "right")
    wanted = {"l": left, "r": right, "both": left | right, "none": set()}
    assert {each: second.seen(space, "apart", each) for each in containers} == wanted
    space.delete("pod", "apart")


@pytest.mark.protocol("P1", "P3", "P4")
def test_what_the_kubelet_finds_wrong_never_reaches_the_driver(space: Kubectl, desk: Desk) -> None:
    space.apply(workloads.claim("unallocated", by_hand.request()))
    begin(space, "full", by_hand.request())
    space.wait_running("full")
    reserve(space, "full", MOST)
    wrong = ("missing", "unallocated", "full")
    for claim in wrong:
        space.apply(on_node(workloads.pod(f"wants-{claim}", claims=[claim])))
    for claim in wrong:
        wait_event(space, f"wants-{claim}", FAILED)
    calls = {claim: desk.calls(claim) for claim in wrong}
    assert calls == {"missing": [], "unallocated": [], "full": ["prepare"]}
    space.delete("pod", "full", *(f"wants-{claim}" for claim in wrong))
    reserve(space, "full", 0)  # or it could never be deleted


@pytest.mark.protocol("P2")
def test_a_driver_that_is_not_there_is_named(cluster: Cluster, space: Kubectl) -> None:
    space.apply(by_hand.device_class(ABSENT))
    space.apply(by_hand.slice_of(ABSENT, NODE))
    begin(space, "orphan", by_hand.request(of=ABSENT))
    wait_event(space, "orphan", FAILED)
    assert ABSENT in dict(space.events("orphan"))[FAILED]
    if cluster.release < (1, 34):  # there the driver is waited for before such a pod may go
        space.run("delete", "pod", "orphan", "--force", "--grace-period=0")
    space.delete("pod", "orphan")
    space.delete("resourceslice", f"{ABSENT}-{NODE}")
    space.delete("deviceclass", ABSENT)


@pytest.mark.protocol("P24", "P26")
def test_many_claims_are_prepared_and_taken_back_at_once_over_one_connection(
    cluster: Cluster, space: Kubectl, desk: Desk
) -> None:
    names = [f"many-{index}" for index in range(8)]
    for name in names:
        begin(space, name, by_hand.request())
    space.wait_running(*names, timeout_s=2 * SLACK_S)
    assert set().union(*(second.seen(space, name) for name in names)) == set().union(
        *(given(space, name) for name in names)
    )
    assert second.connections(cluster, NODE) == 1
    space.delete("pod", *names)
    assert [desk.calls(name) for name in names] == [["prepare", "unprepare"]] * len(names)


@pytest.mark.protocol("P12", "P14")
def test_a_failed_unprepare_is_repeated_until_the_pod_may_go(space: Kubectl, desk: Desk) -> None:
    desk.fail("unprepare stubborn", "not yet")
    begin(space, "stubborn", by_hand.request())
    begin(space, "abrupt", by_hand.request())
    space.wait_running("stubborn", "abrupt")
    space.run("delete", "pod", "abrupt", "--grace-period=0", "--force")
    space.run("delete", "pod", "stubborn", "--wait=false")
    space.wait(partial(too_few, desk, "stubborn", "unprepare", 2), "a second unprepare", LOOP_S)
    assert space.exists("pod", "stubborn")
    desk.forgive("unprepare stubborn")
    space.delete("pod", "stubborn")
    wait_calls(space, desk, "abrupt", "unprepare")


@pytest.mark.protocol("P5", "P25")
def test_a_claim_waits_while_an_older_one_of_its_name_is_not_taken_back(
    cluster: Cluster, space: Kubectl, desk: Desk
) -> None:
    desk.fail("unprepare reborn", "not yet")
    begin(space, "reborn", by_hand.request())
    space.wait_running("reborn")
    space.run("delete", "pod", "reborn", "--grace-period=0", "--force")
    wait_calls(space, desk, "reborn", "unprepare")
    space.delete("resourceclaim", "reborn")
    begin(space, "reborn", by_hand.request())
    if cluster.release < (1, 34):  # these kubelets take the old claim for the new one
        space.wait_running("reborn")
        assert desk.calls("reborn").count("prepare") == 1
        desk.forgive("unprepare reborn")
    else:
        wait_event(space, "reborn", "different UID")
        assert desk.calls("reborn").count("prepare") == 1
        tried = desk.calls("reborn").count("unprepare")
        desk.forgive("unprepare reborn")
        # Kubelets before 1.37 lose a new claim that is prepared while the old one is taken back,
        # which two of their threads may be at.
        space.wait(
            lambda: None if desk.calls("reborn").count("unprepare") > tried else "not again yet",
            "the old claim to be taken back",
            timeout_s=LOOP_S + SLACK_S,
        )
        time.sleep(UNDER_WAY_S)
        insist(space, "reborn")
        assert second.seen(space, "reborn") == given(space, "reborn")
    space.delete("pod", "reborn")


@pytest.mark.protocol("P13", "P18")
def test_what_failed_for_one_of_two_drivers_is_whole_after_a_restart_of_the_kubelet(
    cluster: Cluster, space: Kubectl, desk: Desk
) -> None:
    uuids = [cluster.device(NODE, f"gpu-{index}").uuid for index in (6, 7)]
    pods = dict(zip(("without-gpu", "without-thing"), uuids, strict=True))
    desk.fail("prepare without-thing", "half of it is missing")
    desk.fail("unprepare kept", "not yet")
    begin(space, "kept", by_hand.request())
    space.wait_running("kept")
    for name, uuid in pods.items():
        gpu = workloads.gpus("gpu", workloads.is_gpu(uuid))
        space.apply(workloads.claim(name, by_hand.request(), gpu))
        space.apply(workloads.held_back(workloads.pod(name, claims=[name])))
    for name in pods:
        space.wait(partial(unallocated, space, name), f"claim {name} to be allocated")
    with cluster.lost(NODE, 6):  # one that is lost before is offered to nobody
        for name in pods:
            workloads.let_go(space, name)
        wait_event(space, "without-gpu", "DeviceUnhealthy")
        wait_event(space, "without-thing", "half of it is missing")
    space.run("delete", "pod", "kept", "--wait=false")
    wait_calls(space, desk, "kept", "unprepare")
    cluster.lab.must("restart", f"{NODE}/kubelet")
    desk.forgive("prepare without-thing")
    desk.forgive("unprepare kept")
    for name, uuid in pods.items():
        if insist(space, name, is_refused=partial(is_refused, cluster, NODE, space, name)):
            assert second.seen(space, name) == given(space, name, driver=DRIVER)
            assert workloads.view(space, name).uuids == {uuid}
        else:  # nor would the API server hear that it has ended
            space.run("delete", "pod", name, "--force", "--grace-period=0")
            wait_calls(space, desk, name, "unprepare")
    space.delete("pod", "kept", *pods)
    assert [desk.calls(name)[-1] for name in ("kept", *pods)] == ["unprepare"] * 3


@pytest.mark.protocol("P14", "P15", "P20", "R2", "S1")
def test_a_kubelet_that_was_down_finds_what_happened_meanwhile(
    cluster: Cluster, space: Kubectl, desk: Desk
) -> None:
    desk.block("prepare doomed")
    begin(space, "doomed", by_hand.request())
    begin(space, "leaver", by_hand.request())
    space.wait_running("leaver")
    wait_calls(space, desk, "doomed", "prepare")
    for node in (NODE, OTHER_NODE):
        space.apply(by_hand.slice_of(ABSENT, node))
    cluster.inside(NODE, "pkill", "-STOP", "-x", "kubelet")
    space.run("delete", "pod", "leaver", "doomed", "--grace-period=0", "--force")
    begin(space, "newcomer", by_hand.request())
    cluster.inside(NODE, "pkill", "-KILL", "-x", "kubelet")
    insist(space, "newcomer")
    assert second.seen(space, "newcomer") == given(space, "newcomer")
    wait_calls(space, desk, "leaver", "unprepare")
    wait_calls(space, desk, "doomed", "unprepare")
    assert desk.calls("doomed").count("prepare") == 1
    slice_ = f"{ABSENT}-{NODE}"
    space.wait(lambda: slice_ if space.exists("resourceslice", slice_) else None, "it to be wiped")
    space.delete("resourceslice", f"{ABSENT}-{OTHER_NODE}")
    desk.forgive("prepare doomed")
    space.delete("pod", "newcomer")


def on_node(pod: Manifest) -> Manifest:
    """Past the scheduler: what it would have found out is left to the kubelet."""
    return {**pod, "spec": {**pod["spec"], "nodeName": NODE}}


def given(space: Kubectl, claim: str, request: str = "", driver: str = "") -> set[str]:
    """The devices that a claim was allocated; of one request or driver if it is named."""
    results = space.get("resourceclaim", claim)["status"]["allocation"]["devices"]["results"]
    return {
        result["device"]
        for result in results
        if request in ("", result["request"]) and driver in ("", result["driver"])
    }


def is_running(space: Kubectl, pod: str) -> bool:
    return space.not_ready(pod) is None


def wait_calls(space: Kubectl, desk: Desk, claim: str, method: str) -> None:
    """Until the driver was called for a claim; at the latest by the kubelet's own rounds."""
    lacking = partial(too_few, desk, claim, method, 1)
    space.wait(lacking, f"{method} of {claim}", LOOP_S + SLACK_S)


def too_few(desk: Desk, claim: str, method: str, wanted: int) -> str | None:
    """What calls there have been, unless there have been enough."""
    calls = desk.calls(claim)
    return None if calls.count(method) >= wanted else str(calls)


def reserve(space: Kubectl, claim: str, count: int) -> None:
    """Reserve a claim for so many consumers that are no pods, beside the pods it has."""

    def refused() -> str | None:  # when Kubernetes has changed it since it was read
        found = space.get("resourceclaim", claim)
        users = found["status"].get("reservedFor", [])
        pods = [each for each in users if each["resource"] == "pods"]
        user = {"apiGroup": "example.com", "resource": "users"}
        others = [
            {**user, "name": f"user-{index}", "uid": str(uuid4())}
            for index in range(max(0, count - len(pods)))
        ]
        found["status"]["reservedFor"] = [*pods, *others]
        words = ("replace", "--subresource=status", "-f", "-")
        done = space.attempt(*words, text=json.dumps(found))
        return None if done.returncode == 0 else done.stderr

    space.wait(refused, f"claim {claim} to be reserved for {count}")


def unallocated(space: Kubectl, claim: str) -> str | None:
    """The status of a claim that has no devices yet."""
    status = space.get("resourceclaim", claim).get("status", {})
    return None if "allocation" in status else str(status)
