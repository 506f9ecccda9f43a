# SPDX-License-Identifier: Apache-2.0
"""Runs a week in a lab: pods come and go while incidents happen, and everything is recorded.

Each node has a thread in which its incidents follow one another; the pods have another one.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

from nvdra_api.errors import Reason

from nvdra_testing.cluster import api_versions, workloads
from nvdra_testing.cluster.api_client import ApiClient, ApiError
from nvdra_testing.cluster.installation import GPU_PLUGIN, NAMESPACE, Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.week_of_a_node import history as histories
from nvdra_testing.week_of_a_node import incidents, node_checks, pods, verdict
from nvdra_testing.week_of_a_node.history import History, PodHistory
from nvdra_testing.week_of_a_node.incidents import GPUS, Kind, Place
from nvdra_testing.week_of_a_node.node_checks import Node
from nvdra_testing.week_of_a_node.pods import PlannedPod
from nvdra_testing.week_of_a_node.report import Week
from nvdra_testing.week_of_a_node.verdict import Cause

TICK_S = 0.2
WELL_S = 240.0
"""The longest time until a node is well after an incident: restarts with back-off among them."""

CALM_S = (2.0, 10.0)
"""The time between two incidents of a node."""

SEEN_S = 4.0
"""Time until an incident is visible, so that a node that is not yet ill is not taken for well."""

HURRY_S = 5.0
"""The time between two attempts of a hurried week; a kubelet's are 60 to 90 s apart."""

RUNS_S = 2.0
"""The shortest time that a pod runs before it is deleted."""

DRAIN_S = 2 * verdict.STUCK_S
"""The longest wait for the last pods. Those that are left then are judged as they are."""

NOT_FOUND, CONFLICT = 404, 409


@dataclass(frozen=True)
class Plan:
    """What a week consists of.

    Attributes:
        pods: The number of pods; more are made until each kind of incident has happened.
        seed: Draws pods and incidents.
        kinds: The kinds of incidents.
        rate: Pods that are made per second, at most.
        most_gpus: GPUs that the pods want at one time, at most.
        is_hurried: Whether kubelets are made to try again after some seconds. It saves minutes.
    """

    pods: int
    seed: int
    kinds: tuple[Kind, ...] = incidents.KINDS
    rate: float = 3.0
    most_gpus: int = 16
    is_hurried: bool = False


def run(cluster: Cluster, plan: Plan, tell: Callable[[str], None] = lambda _: None) -> Week:
    """Run a week on a cluster with the driver, and judge it."""
    client = ApiClient.from_kubeconfig(cluster.kubectl.kubeconfig)
    nodes = [Node(cluster, name) for name in cluster.nodes()]
    for node in nodes:
        node.remove_sights()
    began = time.monotonic()
    with cluster.kubectl.fresh_namespace() as space:
        _prove_locks(space, nodes)
    with cluster.kubectl.fresh_namespace() as space, pods.deep_json():
        workloads.allow_admin_access(space)
        version = space.resource_api_version
        for template in pods.templates():
            # Not by kubectl, which would replace what is no text of Unicode.
            manifest = api_versions.convert_manifest(template, version)
            path = f"/apis/{manifest['apiVersion']}/namespaces/{space.namespace}"
            client.request("POST", f"{path}/resourceclaimtemplates", manifest)
        with histories.recorded(client, space.namespace, version) as history:
            running = _WeekRun(cluster, client, space, plan, history, tell)
            running.run()
            week = running.judge(nodes)
            week.seconds = time.monotonic() - began
    return week


def _prove_locks(space: Kubectl, nodes: Sequence[Node]) -> None:
    """Let two pods have one GPU, and see that they notice it: otherwise no week proves anything."""
    rivals = pods.rivals()
    space.apply(pods.claim(rivals[0]))
    for rival in rivals:
        space.apply(pods.manifest(rival, lock="-x"))

    def unnoticed() -> str | None:
        sights = [sight for node in nodes for sight in node.sights()]
        return None if verdict.doubled(sights) else str(sights)

    space.wait(unnoticed, "one of two pods with one GPU to notice the other", timeout_s=60)
    space.delete("pod", *(rival.name for rival in rivals))
    for node in nodes:
        node.remove_sights()


@dataclass
class _WeekRun:
    cluster: Cluster
    client: ApiClient
    space: Kubectl
    plan: Plan
    history: History
    tell: Callable[[str], None]
    planned: dict[str, PlannedPod] = field(default_factory=dict)
    wanted: dict[str, frozenset[str]] = field(default_factory=dict)
    causes: list[Cause] = field(default_factory=list)
    happened: set[str] = field(default_factory=set)
    week: Week = field(init=False)
    _stop: threading.Event = field(default_factory=threading.Event)
    _hurried: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.week = Week(self.plan.seed)

    def run(self) -> None:
        names = self.cluster.nodes()
        locks = {name: threading.Lock() for name in names}
        # One drawn order for all nodes: each kind happens somewhere, even in a short week.
        order = incidents.plan(random.Random(f"{self.plan.seed}/incidents"), self.plan.kinds)
        with ThreadPoolExecutor(len(names)) as threads:
            works = [threads.submit(self._incidents, name, locks, order) for name in names]
            for work in works:
                work.add_done_callback(lambda _: self._stop.set())  # it ends early if it fails
            try:
                self._pods()
            finally:
                self._stop.set()
        for work in works:
            work.result()
        self._drain()

    def judge(self, nodes: Sequence[Node]) -> Week:
        end = time.monotonic()
        week = self.week
        week.pods.update(each.kind.name for each in self.planned.values())
        with self.history.lock:
            histories_ = list(self.history.pods.values())
            killed = [pod for pod in histories_ if self.planned[pod.name].is_forced]
            forced = [
                Cause(
                    "pod deleted with --force",
                    pod.node,
                    pod.deleted,
                    pod.deleted + verdict.FORCED_S,
                    incidents.LEFT_BEHIND,
                )
                for pod in killed
                if pod.deleted is not None
            ]
            kept = {pod.name: verdict.kept_gpus(pod, killed, self.history) for pod in histories_}
            for pod in histories_:
                mine = self.planned[pod.name]
                busy = verdict.busy(pod, mine.gpus, self.history, end)
                causes = [*self.causes, *forced, *busy, *verdict.forgotten_claims(pod)]
                if mine.kind.hostile:
                    reasons = frozenset({Reason.INVALID_CONFIG})
                    causes.append(Cause(mine.kind.name, pod.node, pod.created, end, reasons))
                for wait in verdict.waits([pod], end):
                    judged = verdict.judge(wait, causes)
                    week.judgements.append(judged)
                    self._sort_problem(judged)
                week.told.update({reason for told in pod.told for reason in told.reasons})
                week.groundless += verdict.groundless(pod, causes)
        week.causes = sorted(self.causes, key=lambda cause: cause.began)
        sights = [sight for node in nodes for sight in node.sights()]
        for sight, said in verdict.doubled(sights).items():
            is_kubelets = verdict.is_kubelets(sight, killed, self.history)
            (week.let_go_early if is_kubelets else week.doubled).append(said)
        week.doubled += verdict.unproved(sights)
        week.lost += verdict.wrong_gpus(sights, self.wanted, kept)
        week.lost += self.history.changed_uuids
        for node in nodes:
            week.left_over += self._left_over(node)
        return week

    def _sort_problem(self, judged: verdict.Judgement) -> None:
        if not judged.problem:
            return
        wait = judged.wait
        told = "; ".join(f"+{each.at - wait.began:.0f} s {each.text}" for each in wait.told[-3:])
        line = (
            f"{wait.pod} ({self.planned[wait.pod].kind.name}) on {wait.node or 'no node'} waited "
            f"{wait.seconds:.0f} s {wait.stage}: {judged.problem}; told: {told or 'nothing'}; "
            f"at {self._at(wait.began)}"
        )
        is_stuck = judged.problem.startswith("nothing kept")
        (self.week.stuck if is_stuck else self.week.unexplained).append(line)

    def _at(self, moment: float) -> str:
        return time.strftime("%H:%M:%S", time.gmtime(time.time() - time.monotonic() + moment))

    # Incidents

    def _incidents(
        self, name: str, locks: dict[str, threading.Lock], order: Iterator[Kind]
    ) -> None:
        draw = random.Random(f"{self.plan.seed}/{name}")
        while not self._stop.is_set():
            self._stop.wait(draw.uniform(*CALM_S))
            if self._stop.is_set():
                return
            kind = _next(order)
            with ExitStack() as stack:
                for each in sorted(locks) if kind.is_everywhere else [name]:
                    stack.enter_context(locks[each])
                if not self._stop.is_set():
                    self._happen(kind, Place(self.cluster, name, draw), list(locks))

    def _happen(self, kind: Kind, place: Place, nodes: list[str]) -> None:
        where = nodes if kind.is_everywhere else [place.node]
        began = time.monotonic()
        # It is a cause from now on, and stays one until the nodes are well.
        self.tell(f"{self._at(began)} {', '.join(where)}: {kind.name}")
        try:
            with kind.happen(place):
                time.sleep(place.draw.uniform(*kind.lasts_s))
            time.sleep(SEEN_S)
            for node in where:
                self._wait_well(node, kind)
        finally:
            self.happened.add(kind.name)
            over = time.monotonic()
            everywhere = "" if kind.is_everywhere else place.node
            self.causes.append(Cause(kind.name, everywhere, began, over, kind.reasons))
        for node in where:
            self._check(node)

    def _wait_well(self, node: str, kind: Kind) -> None:
        deadline = time.monotonic() + WELL_S
        while (ill := self._illness(node)) is not None:
            if time.monotonic() > deadline:
                self.week.stuck.append(
                    f"{node} is not well {WELL_S:.0f} s after {kind.name}: {ill}"
                )
                return
            time.sleep(1)

    def _illness(self, node: str) -> str | None:
        """Why a node is not well; None if it is."""
        with self.history.lock:
            offered = self.history.offered[node][-1][1] if self.history.offered[node] else ()
            is_ready = bool(self.history.ready[node]) and self.history.ready[node][-1][1]
        if not is_ready:
            return "the node is not ready"
        if len(offered) != GPUS:
            return f"it offers {sorted(offered)}"
        query = f"labelSelector={GPU_PLUGIN.label}&fieldSelector=spec.nodeName={node}"
        found = self.client.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods?{query}")["items"]
        if len(found) != 1 or "deletionTimestamp" in found[0]["metadata"]:
            return f"it has {len(found)} pods of the plugin"
        conditions = found[0].get("status", {}).get("conditions") or ()
        if not any(each["type"] == "Ready" and each["status"] == "True" for each in conditions):
            return "the plugin's pod is not ready"
        where = f"{found[0]['metadata']['name']}:{GPU_PLUGIN.http_port}"
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{where}/proxy/readyz?verbose"
        return self.client.refusal(path)

    def _check(self, node: str) -> None:
        with self.history.lock:
            forced = [pod for pod in self.history.pods.values() if self.planned[pod.name].is_forced]
        found = node_checks.check(
            Node(self.cluster, node), self.space.namespace, self.history, forced
        )
        self.week.lost += found.lost
        self.week.doubled += found.doubled

    # Pods

    def _pods(self) -> None:
        draw = random.Random(f"{self.plan.seed}/pods")
        coming = pods.plan(draw)
        following = next(coming)
        due = time.monotonic()
        while not self._stop.is_set():
            is_enough = len(self.planned) >= self.plan.pods
            if is_enough and self.happened >= {kind.name for kind in self.plan.kinds}:
                return
            self._look_after_pods()
            if time.monotonic() >= due and self._gpus_wanted() + following.gpus <= (
                self.plan.most_gpus
            ):
                self._create(following)
                following = next(coming)
                due = max(due + 1 / self.plan.rate, time.monotonic() - 1)
                if len(self.planned) % 100 == 0:
                    self.tell(f"{self._at(time.monotonic())} {len(self.planned)} pods")
            else:
                time.sleep(TICK_S)

    def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_S
        while any(pod.gone is None for pod in self.history.pods.values()):
            if time.monotonic() > deadline:
                return
            self._look_after_pods()
            time.sleep(TICK_S)

    def _gpus_wanted(self) -> int:
        with self.history.lock:
            there = [self.planned[pod.name] for pod in self.history.pods.values() if not pod.gone]
        own = sum(each.gpus for each in there if not each.shared_claim)
        shared = {each.shared_claim: each.gpus for each in there if each.shared_claim}
        return own + sum(shared.values())

    def _create(self, planned: PlannedPod) -> None:
        if planned.shared_claim and planned.shared_claim not in {
            each.shared_claim for each in self.planned.values()
        }:
            manifest = api_versions.convert_manifest(
                pods.claim(planned), self.space.resource_api_version
            )
            self._post(f"/apis/{manifest['apiVersion']}", "resourceclaims", manifest)
        self.planned[planned.name] = planned
        with self.history.lock:
            self.history.pods[planned.name] = PodHistory(planned.name, time.monotonic())
        self._post("/api/v1", "pods", pods.manifest(planned))

    def _post(self, version: str, kind: str, manifest: workloads.Manifest) -> None:
        try:
            self.client.request(
                "POST", f"{version}/namespaces/{self.space.namespace}/{kind}", manifest
            )
        except ApiError as error:
            if error.status != CONFLICT:  # the first request had no answer
                raise

    def _look_after_pods(self) -> None:
        self._delete_due()
        self._name_forgotten_claims()
        if self.plan.is_hurried:
            self._hurry()

    def _name_forgotten_claims(self) -> None:
        """Do what docs/failures.md says of a deleted pod whose status has lost a claim's name."""
        now = time.monotonic()
        with self.history.lock:
            lost = [
                (pod.name, dict(pod.named))
                for pod in self.history.pods.values()
                if pod.gone is None
                and pod.deleted is not None
                and now - pod.deleted > verdict.FORGOTTEN_S
                and not pod.names_all
            ]
        for name, claims in lost:
            path = f"/api/v1/namespaces/{self.space.namespace}/pods/{name}/status"
            statuses = [
                {"name": each, "resourceClaimName": claim} for each, claim in sorted(claims.items())
            ]
            try:
                self.client.request("PATCH", path, {"status": {"resourceClaimStatuses": statuses}})
                self.history.pods[name].was_named_again = time.monotonic()
            except ApiError as error:
                if error.status not in (CONFLICT, NOT_FOUND):
                    raise

    def _hurry(self) -> None:
        """Change pods that wait on a node: their kubelet tries again at once."""
        now = time.monotonic()
        with self.history.lock:
            late = [
                pod.name
                for pod in self.history.pods.values()
                if pod.scheduled is not None
                and pod.deleted is None
                and not pod.is_running
                and now - self._hurried.get(pod.name, pod.scheduled) > HURRY_S
            ]
        for name in late:
            self._hurried[name] = now
            path = f"/api/v1/namespaces/{self.space.namespace}/pods/{name}"
            try:
                annotations = {"tests/again": f"{now:.0f}"}
                self.client.request("PATCH", path, {"metadata": {"annotations": annotations}})
            except ApiError as error:
                if error.status != NOT_FOUND:
                    raise

    def _delete_due(self) -> None:
        now = time.monotonic()
        with self.history.lock:
            due = [
                pod
                for pod in self.history.pods.values()
                if pod.deleted is None and self._is_due(pod, now)
            ]
            for pod in due:
                self._note_gpus(pod)
        for pod in due:
            is_forced = self.planned[pod.name].is_forced
            pod.deleted = time.monotonic()
            path = f"/api/v1/namespaces/{self.space.namespace}/pods/{pod.name}"
            try:
                self.client.request("DELETE", path + ("?gracePeriodSeconds=0" * is_forced))
            except ApiError as error:
                if error.status != NOT_FOUND:
                    raise

    def _is_due(self, pod: PodHistory, now: float) -> bool:
        planned = self.planned[pod.name]
        if planned.is_hasty:
            return now - pod.created > planned.life_s
        if len(pod.forgotten) >= verdict.FORGOTTEN_OFTEN:  # a person would do the same
            return True
        runs = pod.is_running and now - pod.runs[-1].began > RUNS_S
        return runs and now - pod.runs[0].began > planned.life_s

    def _note_gpus(self, pod: PodHistory) -> None:
        """Remember what the pod's claims have, which nobody can say after it is gone."""
        has = self.history.devices_of(pod)
        if pod.runs and has:
            self.wanted[pod.name] = frozenset(
                self.history.uuids[each.node, each.device] for each in has
            )

    # The end

    def _left_over(self, node: Node) -> list[str]:
        """Whatever is still on a node when a kubelet has had its time to look for it."""
        deadline = time.monotonic() + verdict.LATE_S + 30
        with self.history.lock:
            pods_left = [pod.name for pod in self.history.pods.values() if pod.gone is None]
        if pods_left:
            return [f"the pods {', '.join(pods_left[:10])}"]
        while True:
            found = node_checks.check_empty(node, self.history).left_over
            if not found or time.monotonic() > deadline:
                return list(found)
            time.sleep(2)


_ORDER = threading.Lock()


def _next(order: Iterator[Kind]) -> Kind:
    with _ORDER:
        return next(order)
