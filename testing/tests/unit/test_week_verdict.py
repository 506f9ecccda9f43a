# SPDX-License-Identifier: Apache-2.0
"""The judgement of a week finds what is lost, doubled, stuck and unexplained, and nothing else."""

from dataclasses import replace
from typing import Any

from nvdra_api.errors import Reason
from nvdra_testing.week_of_a_node import report, verdict
from nvdra_testing.week_of_a_node.history import (
    DRIVER,
    NOT_REGISTERED,
    UNSCHEDULABLE,
    Allocation,
    History,
    PodHistory,
    Run,
    Told,
    reasons_in,
)
from nvdra_testing.week_of_a_node.report import Week
from nvdra_testing.week_of_a_node.verdict import SILENCE, Cause, Sight, Stage, Wait

HUNG = Cause("hung GPU", "node-1", 100.0, 130.0, frozenset({Reason.DEVICE_UNHEALTHY}))
REBOOT = Cause("reboot", "node-1", 100.0, 130.0, frozenset({SILENCE, NOT_REGISTERED}))


def told(at: float, *reasons: str) -> Told:
    return Told(at, frozenset(reasons), " ".join(reasons))


def wait(began: float, ended: float, *said: Told, node: str = "node-1") -> Wait:
    return Wait("p", node, Stage.STARTED, began, ended, said)


def test_a_short_wait_needs_no_explanation() -> None:
    assert not verdict.judge(wait(0, verdict.QUIET_S), []).problem


def test_a_wait_is_explained_by_an_event_that_names_a_cause_that_is_there() -> None:
    judged = verdict.judge(wait(105, 190, told(110, Reason.DEVICE_UNHEALTHY)), [HUNG])
    assert judged.reasons == (Reason.DEVICE_UNHEALTHY,)
    assert not judged.problem


def test_a_wait_is_not_explained_by_another_reason_or_another_nodes_cause() -> None:
    silent = "no Event names a cause that was there"
    assert verdict.judge(wait(105, 190), [HUNG]).problem == silent
    other = wait(105, 190, told(110, Reason.STATE_CORRUPT))
    assert verdict.judge(other, [HUNG]).problem == silent
    elsewhere = wait(105, 190, told(110, Reason.DEVICE_UNHEALTHY), node="node-2")
    assert verdict.judge(elsewhere, [HUNG]).problem == silent
    late = wait(105, 250, told(130 + verdict.LATE_S + 1, Reason.DEVICE_UNHEALTHY))
    assert verdict.judge(late, [HUNG]).problem == silent


def test_nobody_has_to_say_anything_while_the_node_has_no_power() -> None:
    judged = verdict.judge(wait(105, 190), [REBOOT])
    assert judged.reasons == ("(reboot)",)
    assert not judged.problem


def test_a_pod_that_waits_on_when_its_cause_is_gone_is_stuck() -> None:
    said = told(110, Reason.DEVICE_UNHEALTHY)
    ended = HUNG.over + verdict.STUCK_S
    assert not verdict.judge(wait(105, ended, said), [HUNG]).problem
    assert "nothing kept it" in verdict.judge(wait(105, ended + 1, said), [HUNG]).problem


def test_causes_that_follow_one_another_keep_a_pod() -> None:
    later = Cause("hung GPU", "node-1", 250.0, 280.0, HUNG.reasons)
    said = told(110, Reason.DEVICE_UNHEALTHY)
    assert not verdict.judge(wait(105, 400, said), [HUNG, later]).problem


def test_gaps_are_what_no_span_covers() -> None:
    assert verdict.longest_gap(0, 10, []) == 10
    assert verdict.longest_gap(0, 10, [(2, 3), (1, 5)]) == 5
    assert verdict.longest_gap(0, 10, [(8, 20)]) == 8
    assert verdict.longest_gap(5, 10, [(0, 20)]) == 0


def test_the_waits_of_a_pod_are_until_it_is_scheduled_runs_runs_again_and_is_gone() -> None:
    pod = PodHistory("p", created=1, node="node-1", scheduled=3, deleted=60, gone=64)
    pod.runs = [Run("a", 7, 20), Run("b", 45)]
    found = [(each.stage, each.began, each.ended) for each in verdict.waits([pod], 100)]
    assert found == [
        (Stage.SCHEDULED, 1, 3),
        (Stage.STARTED, 3, 7),
        (Stage.RESTARTED, 20, 45),
        (Stage.ENDED, 60, 64),
    ]


def test_a_pod_that_never_ran_waited_until_the_end() -> None:
    pod = PodHistory("p", created=1, node="node-1", scheduled=3)
    last = verdict.waits([pod], 500)[-1]
    assert (last.stage, last.ended) == (Stage.STARTED, 500)


def test_a_warning_without_its_cause_is_groundless() -> None:
    pod = PodHistory("p", created=90, node="node-1")
    pod.told = [
        told(110, Reason.DEVICE_UNHEALTHY),
        told(110, UNSCHEDULABLE),
        told(120, Reason.DRIVER_MISMATCH),
    ]
    assert verdict.groundless(pod, [HUNG]) == ["p on node-1: DriverMismatch"]


def test_a_pod_cannot_be_scheduled_while_other_pods_have_the_gpus() -> None:
    history = History()
    history.ready["node-1"] = [(0, True)]
    history.offered["node-1"] = [(0, frozenset({"gpu-0", "gpu-1"}))]
    part = "gpu-0-mig-1g10gb-19-0"
    history.allocations["other"] = [Allocation("other", "node-1", part, False, 10, 40)]
    history.allocations["watcher"] = [Allocation("watcher", "node-1", "gpu-1", True, 0)]
    pod = PodHistory("p", created=5, scheduled=60)
    assert verdict.busy(pod, 1, history, 60) == []
    (found,) = verdict.busy(pod, 2, history, 60)
    assert (found.began, found.over) == (10, 39)
    (absent,) = verdict.busy(pod, 3, history, 60)
    assert (absent.began, absent.over) == (5, 60)


def test_a_name_that_becomes_another_gpus_is_a_problem_in_one_boot_only() -> None:
    history = History()

    def published(uuid: str, boot: str) -> None:
        history.take_node("MODIFIED", node_of(boot))
        partition = {"name": "gpu-0-mig-1g10gb-19-0", "attributes": {"parentUUID": text(uuid)}}
        devices = [{"name": "gpu-0", "attributes": {"uuid": text(uuid)}}, partition]
        spec = {"driver": DRIVER, "nodeName": "node-1", "devices": devices}
        history.take_slice("MODIFIED", {"metadata": {"name": "slice"}, "spec": spec})

    published("GPU-0", "first")
    published("GPU-1", "second")
    assert not history.changed_uuids
    assert set(history.uuids.values()) == {"GPU-1"}
    assert history.offered["node-1"][-1][1] == {"gpu-0"}
    published("GPU-2", "second")
    assert history.changed_uuids[0] == "node-1/gpu-0 became GPU-2"


def text(value: str) -> dict[str, str]:
    return {"string": value}


def node_of(boot: str) -> dict[str, Any]:
    status = {"nodeInfo": {"bootID": boot}, "conditions": []}
    return {"metadata": {"name": "node-1"}, "spec": {}, "status": status}


def test_pods_that_meet_at_a_gpu_and_pods_with_other_gpus_are_found() -> None:
    sights = [
        Sight("node-1", "a", "starts", ("0",)),
        Sight("node-1", "a", "sees", ("GPU-0",)),
        Sight("node-1", "b", "doubled", ("0", "a"), 7),
        Sight("node-1", "c", "unlocked", ("0",)),
        Sight("node-1", "d", "sees", ("GPU-1",)),
    ]
    (said,) = verdict.doubled(sights).values()
    assert said == (
        "b on node-1: GPU 0 was that of a, too; 0 s a starts, 0 s a sees, 7 s b doubled"
    )
    assert len(verdict.unproved(sights)) == 1
    wanted = {"a": frozenset({"GPU-0"}), "d": frozenset({"GPU-0"})}
    (wrong,) = verdict.wrong_gpus(sights, wanted, {})
    assert wrong.startswith("d on node-1 sees ['GPU-1']")


def test_what_a_claim_had_before_may_be_kept_for_the_next_pod_after_a_forced_deletion_only() -> (
    None
):
    history = History(uuids={("node-1", "gpu-0"): "GPU-0", ("node-1", "gpu-1"): "GPU-1"})
    history.allocations["shared"] = [
        Allocation("shared", "node-1", "gpu-0", is_admin=False, began=10, ended=20),
        Allocation("shared", "node-1", "gpu-1", is_admin=False, began=21),
    ]
    first = PodHistory("a", 9, node="node-1", deleted=19, claims={"gpu": "shared"})
    after = PodHistory("b", 18, node="node-1", claims={"gpu": "shared"})
    elsewhere = PodHistory("c", 18, node="node-2", claims={"gpu": "shared"})
    assert verdict.kept_gpus(after, [first], history) == {frozenset({"GPU-0"})}
    assert verdict.kept_gpus(after, [], history) == set()
    assert verdict.kept_gpus(elsewhere, [first], history) == set()

    sees = [verdict.Sight("node-1", "b", "sees", ("GPU-0",))]
    wanted = {"b": frozenset({"GPU-1"})}
    kept = {"b": verdict.kept_gpus(after, [first], history)}
    assert verdict.wrong_gpus(sees, wanted, kept) == []
    assert verdict.wrong_gpus(sees, wanted, {"b": set()}) != []


def test_a_gpu_that_the_kubelet_lets_go_while_a_force_deleted_pod_ends_is_told_apart() -> None:
    history = History()
    history.allocations["c"] = [Allocation("c", "node-1", "gpu-7", is_admin=False, began=10)]
    old = PodHistory("a", 9, node="node-1", deleted=100, claims={"gpu": "c"})
    soon = verdict.Sight("node-1", "b", "doubled", ("7", "a"), 103)
    assert verdict.is_kubelets(soon, [old], history)
    assert not verdict.is_kubelets(soon, [], history)
    for other in (
        replace(soon, at=99),
        replace(soon, at=100 + verdict.FORCED_S + 1),
        replace(soon, node="node-2"),
        replace(soon, what=("6", "a")),
    ):
        assert not verdict.is_kubelets(other, [old], history), other


def test_reasons_are_read_from_the_drivers_and_from_the_kubelets_words() -> None:
    failed = "FailedPrepareDynamicResources"
    assert reasons_in(failed, "NodePrepareResources: DeviceInUse: gpu-1 is held") == {"DeviceInUse"}
    assert reasons_in(failed, "DRA driver gpu.nvidia.com is not registered") == {NOT_REGISTERED}
    assert reasons_in("FailedScheduling", "0/2 nodes are available") == {UNSCHEDULABLE}
    assert reasons_in("BackOff", "Back-off restarting failed container") == frozenset()


def test_the_report_counts_long_waits_by_what_explains_them() -> None:
    week = Week(seed=3, seconds=600, causes=[HUNG])
    said = told(110, Reason.DEVICE_UNHEALTHY)
    for ended in (115, 165, 190):
        week.judgements.append(verdict.judge(wait(105, ended, said), [HUNG]))
    week.pods["one GPU"] = 3
    page = report.as_markdown(week)
    assert "| hung GPU | 1 | 30 s | 30 s |" in page
    assert "| to run | DeviceUnhealthy | 2 | 72 s | 85 s |" in page
    assert "**0 lost, 0 doubled, 0 stuck, 0 unexplained, 0 groundless, 0 left over**" in page
    week.lost.append("claim c of pod p has no record")
    assert "## Lost\n\n- claim c of pod p has no record" in report.as_markdown(week)
    week.let_go_early.append("b on node-1: GPU 7 was that of a, too")
    assert "## Let go by the kubelet before" in report.as_markdown(week)
    assert "1 lost, 0 doubled" in report.as_markdown(week)


def status_of(*claims: str) -> dict[str, object]:
    named = [{"name": claim, "resourceClaimName": f"p-{claim}"} for claim in claims]
    return {
        "metadata": {"name": "p"},
        "spec": {"nodeName": "node-1"},
        "status": {"resourceClaimStatuses": named},
    }


def test_a_pod_whose_claims_kubernetes_forgets_by_turns_is_not_our_matter() -> None:
    history = History(pods={"p": PodHistory("p", 0.0)})
    pod = history.pods["p"]
    history.take_pod("MODIFIED", status_of("a"))
    history.take_pod("MODIFIED", status_of("a", "b"))
    assert not pod.forgotten
    for turn in range(verdict.FORGOTTEN_OFTEN):
        assert not verdict.forgotten_claims(pod)
        history.take_pod("MODIFIED", status_of("ab"[turn % 2]))
    pod.deleted = pod.forgotten[-1] + 300
    waited = wait(pod.forgotten[0], pod.deleted)
    assert not verdict.judge(waited, verdict.forgotten_claims(pod)).problem
    assert verdict.judge(waited, []).problem.startswith("nothing kept it")


def test_a_deleted_pod_whose_claim_was_named_again_by_hand_waited_for_kubernetes() -> None:
    history = History(pods={"p": PodHistory("p", 0.0)})
    pod = history.pods["p"]
    history.take_pod("MODIFIED", status_of("a", "b"))
    assert pod.names_all
    history.take_pod("MODIFIED", status_of("a"))
    assert (pod.names_all, pod.named) == (False, {"a": "p-a", "b": "p-b"})
    assert not verdict.forgotten_claims(pod)
    pod.deleted = pod.forgotten[0]
    pod.was_named_again = pod.deleted + 300
    waited = wait(pod.deleted, pod.was_named_again)
    assert not verdict.judge(waited, verdict.forgotten_claims(pod)).problem
    history.take_pod("MODIFIED", status_of("a", "b"))
    assert pod.names_all
