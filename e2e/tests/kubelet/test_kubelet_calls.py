# SPDX-License-Identifier: Apache-2.0
"""What a real kubelet does around its calls, with the second driver following instructions.

A kubelet retries a failed prepare only 60 to 90 s later, or as soon as the pod changes;
`retry_until_ready` changes it.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from nvdra_testing.cluster import published_devices, second_driver, workloads
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.pod_prepares import (
    CLEANUP_PERIOD_S,
    FAILED,
    MARGIN_S,
    apply_pod_with_claim,
    is_status_rejected,
    retry_until_ready,
    wait_event,
)
from nvdra_testing.cluster.workloads import Manifest

from e2e.second_driver.control_files import DRIVER, ControlDir

NODE, OTHER_NODE = "node-2", "node-1"
CALL_S = 45
"""The kubelet's deadline for a call."""

CHECKPOINT = "/var/lib/kubelet/dra_manager_state"
"""The kubelet's record of the claims that are prepared or have to be taken back."""

HANGING = "hanging"
"""A pod and its claim whose prepare is not answered."""

MOST = 256
"""The largest number of consumers of a claim."""

ABSENT = "absent.example.com"
"""A driver that does not run."""

pytestmark = pytest.mark.timeout(CLEANUP_PERIOD_S + CALL_S + 3 * MARGIN_S, func_only=True)


@pytest.fixture(scope="module")
def space(cluster: Cluster) -> Iterator[Kubectl]:
    """One namespace for all tests of this file."""
    cluster.kubectl.apply(published_devices.device_class(DRIVER))
    with cluster.kubectl.fresh_namespace() as kubectl:
        yield kubectl
    cluster.kubectl.delete("deviceclass", DRIVER)


@pytest.fixture(scope="module")
def desk(
    cluster: Cluster, space: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlDir]:
    """The second driver on one node; a prepare hangs there from the start."""
    folder: Path = tmp_path_factory.mktemp("second")
    with second_driver.run_driver(cluster, NODE, folder) as desk:
        desk.block(f"prepare {HANGING}")
        apply_pod_with_claim(space, HANGING, published_devices.device_request())
        yield desk
        desk.clear()
        space.run("delete", "pods", "--all")  # they could not end without the driver


@pytest.mark.protocol("P9", "P11")
def test_a_failed_prepare_says_why_and_is_repeated(space: Kubectl, desk: ControlDir) -> None:
    desk.fail("prepare failing", "no thing today")
    apply_pod_with_claim(space, "failing", published_devices.device_request())
    wait_event(space, "failing", "no thing today")
    assert not is_running(space, "failing")
    desk.stop_failing("prepare failing")
    retry_until_ready(space, "failing")
    assert desk.calls("failing").count("prepare") >= 2
    assert second_driver.devices_of_container(space, "failing") == given(space, "failing")
    space.delete("pod", "failing")


@pytest.mark.protocol("P10")
def test_a_prepare_that_is_not_answered_is_given_up_and_repeated(
    space: Kubectl, desk: ControlDir
) -> None:
    wait_event(space, HANGING, "DeadlineExceeded", CALL_S + MARGIN_S)
    assert not is_running(space, HANGING)
    desk.stop_failing(f"prepare {HANGING}")
    retry_until_ready(space, HANGING)
    assert second_driver.devices_of_container(space, HANGING) == given(space, HANGING)


@pytest.mark.protocol("P16", "P19")
def test_a_shared_claim_is_prepared_once_and_taken_back_after_its_last_pod(
    space: Kubectl, desk: ControlDir
) -> None:
    space.apply(workloads.claim("shared", published_devices.device_request()))
    for name in ("one", "two"):
        space.apply(workloads.pod(name, claims=["shared"]))
        space.wait_running(name)
    space.apply(workloads.claim("new", published_devices.device_request()))
    space.apply(workloads.pod("three", claims=["shared", "new"]))
    space.wait_running("three")
    assert desk.calls("shared") == ["prepare"]
    assert desk.calls("new") == ["prepare"]
    space.delete("pod", "one", "three")
    assert desk.calls("shared") == ["prepare"]
    assert calls_once(desk, "new") == ["prepare", "unprepare"]
    space.delete("pod", "two")
    assert calls_once(desk, "shared") == ["prepare", "unprepare"]


@pytest.mark.protocol("P17")
def test_a_claim_that_no_container_uses_is_prepared(space: Kubectl, desk: ControlDir) -> None:
    space.apply(workloads.claim("unused", published_devices.device_request()))
    space.apply(workloads.pod("idler", claims=["unused"], containers={"main": []}))
    space.wait_running("idler")
    assert desk.calls("unused") == ["prepare"]
    assert second_driver.devices_of_container(space, "idler") == set()
    space.delete("pod", "idler")
    assert calls_once(desk, "unused") == ["prepare", "unprepare"]


@pytest.mark.protocol("P21")
def test_each_container_gets_the_requests_that_it_names(space: Kubectl, desk: ControlDir) -> None:
    space.apply(
        workloads.claim(
            "pair",
            published_devices.device_request("left"),
            published_devices.device_request("right"),
        )
    )
    containers = {"l": ["pair/left"], "r": ["pair/right"], "both": ["pair"], "none": []}
    space.apply(workloads.pod("apart", claims=["pair"], containers=containers))
    space.wait_running("apart")
    left, right = given(space, "pair", "left"), given(space, "pair", "right")
    wanted = {"l": left, "r": right, "both": left | right, "none": set()}
    assert {
        each: second_driver.devices_of_container(space, "apart", each) for each in containers
    } == wanted
    space.delete("pod", "apart")


@pytest.mark.protocol("P1", "P3", "P4")
def test_what_the_kubelet_finds_wrong_never_reaches_the_driver(
    space: Kubectl, desk: ControlDir
) -> None:
    space.apply(workloads.claim("unallocated", published_devices.device_request()))
    apply_pod_with_claim(space, "full", published_devices.device_request())
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
    reserve(space, "full", 0)  # otherwise it could never be deleted


@pytest.mark.protocol("P2")
def test_a_driver_that_is_not_there_is_named(cluster: Cluster, space: Kubectl) -> None:
    space.apply(published_devices.device_class(ABSENT))
    space.apply(published_devices.resource_slice(ABSENT, NODE))
    apply_pod_with_claim(space, "orphan", published_devices.device_request(driver=ABSENT))
    wait_event(space, "orphan", FAILED)
    assert ABSENT in dict(space.events("orphan"))[FAILED]
    if cluster.release < (1, 34):  # these kubelets wait for the driver before such a pod may end
        space.run("delete", "pod", "orphan", "--force", "--grace-period=0")
    space.delete("pod", "orphan")
    space.delete("resourceslice", f"{ABSENT}-{NODE}")
    space.delete("deviceclass", ABSENT)


@pytest.mark.protocol("P24", "P26")
def test_many_claims_are_prepared_and_taken_back_at_once_over_one_connection(
    cluster: Cluster, space: Kubectl, desk: ControlDir
) -> None:
    names = [f"many-{index}" for index in range(8)]
    for name in names:
        apply_pod_with_claim(space, name, published_devices.device_request())
    space.wait_running(*names, timeout_s=2 * MARGIN_S)
    assert set().union(
        *(second_driver.devices_of_container(space, name) for name in names)
    ) == set().union(*(given(space, name) for name in names))
    assert second_driver.connection_count(cluster, NODE) == 1
    space.delete("pod", *names)
    assert [calls_once(desk, name) for name in names] == [["prepare", "unprepare"]] * len(names)


@pytest.mark.protocol("P12", "P14")
def test_a_failed_unprepare_is_repeated_until_the_pod_may_go(
    space: Kubectl, desk: ControlDir
) -> None:
    desk.fail("unprepare stubborn", "not yet")
    apply_pod_with_claim(space, "stubborn", published_devices.device_request())
    apply_pod_with_claim(space, "abrupt", published_devices.device_request())
    space.wait_running("stubborn", "abrupt")
    space.run("delete", "pod", "abrupt", "--grace-period=0", "--force")
    space.run("delete", "pod", "stubborn", "--wait=false")
    space.wait(
        partial(too_few, desk, "stubborn", "unprepare", 2), "a second unprepare", CLEANUP_PERIOD_S
    )
    assert space.exists("pod", "stubborn")
    desk.stop_failing("unprepare stubborn")
    space.delete("pod", "stubborn")
    wait_calls(space, desk, "abrupt", "unprepare")


@pytest.mark.protocol("P5", "P25")
def test_a_claim_waits_while_an_older_one_of_its_name_is_not_taken_back(
    cluster: Cluster, space: Kubectl, desk: ControlDir
) -> None:
    desk.fail("unprepare reborn", "not yet")
    apply_pod_with_claim(space, "reborn", published_devices.device_request())
    space.wait_running("reborn")
    space.run("delete", "pod", "reborn", "--grace-period=0", "--force")
    wait_calls(space, desk, "reborn", "unprepare")
    old = space.get("resourceclaim", "reborn")["metadata"]["uid"]
    space.delete("resourceclaim", "reborn")
    apply_pod_with_claim(space, "reborn", published_devices.device_request())
    if cluster.release < (1, 34):  # these kubelets confuse the old claim with the new one
        space.wait_running("reborn")
        assert desk.calls("reborn").count("prepare") == 1
        desk.stop_failing("unprepare reborn")
    else:
        wait_event(space, "reborn", "different UID")
        assert desk.calls("reborn").count("prepare") == 1
        desk.stop_failing("unprepare reborn")
        # Kubelets before 1.37 can lose a new claim that one thread prepares while another one
        # unprepares the old claim.
        space.wait(
            lambda: "it is known" if old in known_claims(cluster) else None,
            "the old claim to be taken back",
            timeout_s=CLEANUP_PERIOD_S + MARGIN_S,
        )
        retry_until_ready(space, "reborn")
        assert second_driver.devices_of_container(space, "reborn") == given(space, "reborn")
    space.delete("pod", "reborn")


@pytest.mark.protocol("P13", "P18")
def test_what_failed_for_one_of_two_drivers_is_whole_after_a_restart_of_the_kubelet(
    cluster: Cluster, space: Kubectl, desk: ControlDir
) -> None:
    uuids = [cluster.device(NODE, f"gpu-{index}").uuid for index in (6, 7)]
    pods = dict(zip(("without-gpu", "without-thing"), uuids, strict=True))
    desk.fail("prepare without-thing", "half of it is missing")
    desk.fail("unprepare kept", "not yet")
    apply_pod_with_claim(space, "kept", published_devices.device_request())
    space.wait_running("kept")
    for name, uuid in pods.items():
        gpu = workloads.gpus("gpu", workloads.is_gpu_with_uuid(uuid))
        space.apply(workloads.claim(name, published_devices.device_request(), gpu))
        space.apply(workloads.gated_pod(workloads.pod(name, claims=[name])))
    for name in pods:
        space.wait(partial(unallocated, space, name), f"claim {name} to be allocated")
    with cluster.lose_gpu(NODE, 6):  # a GPU that is lost earlier is not published
        for name in pods:
            workloads.open_gate(space, name)
        wait_event(space, "without-gpu", "DeviceUnhealthy")
        wait_event(space, "without-thing", "half of it is missing")
    space.run("delete", "pod", "kept", "--wait=false")
    wait_calls(space, desk, "kept", "unprepare")
    cluster.lab.run_checked("restart", f"{NODE}/kubelet")
    desk.stop_failing("prepare without-thing")
    desk.stop_failing("unprepare kept")
    for name, uuid in pods.items():
        if retry_until_ready(
            space, name, is_refused=partial(is_status_rejected, cluster, NODE, space, name)
        ):
            assert second_driver.devices_of_container(space, name) == given(
                space, name, driver=DRIVER
            )
            assert workloads.visible_gpus(space, name).uuids == {uuid}
        else:  # the API server would not learn that it has ended, either
            space.run("delete", "pod", name, "--force", "--grace-period=0")
            wait_calls(space, desk, name, "unprepare")
    space.delete("pod", "kept", *pods)
    assert [desk.calls(name)[-1] for name in ("kept", *pods)] == ["unprepare"] * 3


@pytest.mark.protocol("P14", "P15", "P20", "R2", "S1")
def test_a_kubelet_that_was_down_finds_what_happened_meanwhile(
    cluster: Cluster, space: Kubectl, desk: ControlDir
) -> None:
    desk.block("prepare doomed")
    apply_pod_with_claim(space, "doomed", published_devices.device_request())
    apply_pod_with_claim(space, "leaver", published_devices.device_request())
    space.wait_running("leaver")
    wait_calls(space, desk, "doomed", "prepare")
    for node in (NODE, OTHER_NODE):
        space.apply(published_devices.resource_slice(ABSENT, node))
    cluster.exec_on_node(NODE, "pkill", "-STOP", "-x", "kubelet")
    space.run("delete", "pod", "leaver", "doomed", "--grace-period=0", "--force")
    apply_pod_with_claim(space, "newcomer", published_devices.device_request())
    cluster.exec_on_node(NODE, "pkill", "-KILL", "-x", "kubelet")
    retry_until_ready(space, "newcomer")
    assert second_driver.devices_of_container(space, "newcomer") == given(space, "newcomer")
    wait_calls(space, desk, "leaver", "unprepare")
    wait_calls(space, desk, "doomed", "unprepare")
    assert desk.calls("doomed").count("prepare") == 1
    slice_ = f"{ABSENT}-{NODE}"
    space.wait(lambda: slice_ if space.exists("resourceslice", slice_) else None, "it to be wiped")
    space.delete("resourceslice", f"{ABSENT}-{OTHER_NODE}")
    desk.stop_failing("prepare doomed")
    space.delete("pod", "newcomer")


def on_node(pod: Manifest) -> Manifest:
    """The pod bound to the node: the kubelet has to find what the scheduler would have found."""
    return {**pod, "spec": {**pod["spec"], "nodeName": NODE}}


def given(space: Kubectl, claim: str, request: str = "", driver: str = "") -> set[str]:
    """The devices that are allocated to a claim, optionally of one request or driver."""
    results = space.get("resourceclaim", claim)["status"]["allocation"]["devices"]["results"]
    return {
        result["device"]
        for result in results
        if request in ("", result["request"]) and driver in ("", result["driver"])
    }


def is_running(space: Kubectl, pod: str) -> bool:
    return space.not_ready(pod) is None


def known_claims(cluster: Cluster) -> set[str]:
    """The UIDs of the claims in the kubelet's record."""
    state = json.loads(cluster.exec_on_node(NODE, "cat", CHECKPOINT))
    return {claim["ClaimUID"] for claim in json.loads(state["Data"])["ClaimInfoStateList"] or ()}


def calls_once(desk: ControlDir, claim: str) -> list[str]:
    """The calls for a claim; one that the kubelet's periodic sync took back again counts once."""
    calls = desk.calls(claim)
    return [
        call
        for before, call in zip(["", *calls], calls, strict=False)
        if (before, call) != ("unprepare", "unprepare")
    ]


def wait_calls(space: Kubectl, desk: ControlDir, claim: str, method: str) -> None:
    """Wait until the driver was called for a claim.

    At the latest by the kubelet's periodic sync.
    """
    lacking = partial(too_few, desk, claim, method, 1)
    space.wait(lacking, f"{method} of {claim}", CLEANUP_PERIOD_S + MARGIN_S)


def too_few(desk: ControlDir, claim: str, method: str, wanted: int) -> str | None:
    """The calls so far, unless there are enough."""
    calls = desk.calls(claim)
    return None if calls.count(method) >= wanted else str(calls)


def reserve(space: Kubectl, claim: str, count: int) -> None:
    """Reserve a claim for this many consumers that are no pods, in addition to its pods."""

    def refused() -> str | None:  # if Kubernetes has changed it since it was read
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
        done = space.run_unchecked(*words, text=json.dumps(found))
        return None if done.returncode == 0 else done.stderr

    space.wait(refused, f"claim {claim} to be reserved for {count}")


def unallocated(space: Kubectl, claim: str) -> str | None:
    """The status of a claim without allocated devices."""
    status = space.get("resourceclaim", claim).get("status", {})
    return None if "allocation" in status else str(status)
