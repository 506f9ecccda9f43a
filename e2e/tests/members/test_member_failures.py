# SPDX-License-Identifier: Apache-2.0
"""Workers, daemons and kubelets fail while a job runs; the job succeeds and nothing moves."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from subprocess import CompletedProcess

import pytest
from nvdra_api import names
from nvdra_api.ids import DomainUID
from nvdra_imex_daemon.configuration import dns_names
from nvdra_testing.cluster import compute_domains, multi_node_job, recorders
from nvdra_testing.cluster.compute_domains import Domain
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.recorders import ImexRecording, Recording

pytestmark = pytest.mark.timeout(600, func_only=True)

NAME = "ring"
QUERY = ("nvidia-imex-ctl", "-c", "/imexd/imexd.cfg", "-q")
BACK_S = 90
WORKERS_S = 150
"""A kubelet repeats the prepare of a channel that missed its call after 60 to 90 s."""

_jobs = count(1)


@dataclass(frozen=True)
class Ring:
    """A domain with a worker on each node."""

    rack: Cluster
    pods: Kubectl
    domain: Domain

    def daemon_of(self, rank: int) -> str:
        """The daemon pod on the node of a worker."""
        return self.domain.daemons()[multi_node_job.node_of(self.pods, rank)]

    def kill_daemons(self, *ranks: int) -> None:
        """Kill daemons."""
        multi_node_job.force_delete(
            self.rack.driver_namespace, *(self.daemon_of(rank) for rank in ranks)
        )


@pytest.fixture(scope="module")
def formed(rack: Cluster) -> Iterator[Ring]:
    """A domain that is formed once for all tests of this file, and leaves nothing behind."""
    with rack.kubectl.fresh_namespace() as pods:
        domain = Domain(rack, compute_domains.create_domain(pods, NAME, nodes=2))
        for item in multi_node_job.workers(compute_domains.template_name(NAME)):
            pods.apply(item)
        wait_workers(pods)
        compute_domains.wait_ready(pods, NAME, 2)
        yield Ring(rack, pods, domain)
        pods.delete("statefulset", "worker")
        pods.wait(
            lambda: pods.run("get", "pods", "-l", "app=worker", "--no-headers") or None,
            "the workers to be gone",
        )
        pods.delete("computedomain", NAME)
        domain.wait_gone()
        compute_domains.wait_released(rack)


def worker_killed(formed: Ring) -> None:
    multi_node_job.force_delete(formed.pods, "worker-0")


def worker_deleted(formed: Ring) -> None:
    formed.pods.run("delete", "pod", "worker-1", "--wait=false")


def one_daemon_killed(formed: Ring) -> None:
    formed.kill_daemons(0)


def all_daemons_killed(formed: Ring) -> None:
    formed.kill_daemons(0, 1)


@dataclass(frozen=True)
class Fault:
    """A fault while a job runs.

    Attributes:
        happens: Causes the fault.
        workers: The workers that are replaced.
        daemons: The workers whose daemons are killed.
    """

    happens: Callable[[Ring], None]
    workers: frozenset[int] = frozenset()
    daemons: frozenset[int] = frozenset()


FAULTS = (
    Fault(worker_killed, workers=frozenset({0})),
    Fault(worker_deleted, workers=frozenset({1})),
    Fault(one_daemon_killed, daemons=frozenset({0})),
    Fault(all_daemons_killed, daemons=frozenset({0, 1})),
)


@dataclass(frozen=True)
class Standing:
    """The state of a ring at one moment; keys are nodes.

    Attributes:
        workers: The worker's pod and container.
        daemons: The daemon's pod.
        indexes: The index in the clique.
        held: The CDI specs of prepared claims.
        prepares: The number of prepares, by kind.
    """

    workers: dict[str, tuple[str, str]]
    daemons: dict[str, str]
    indexes: dict[str, int]
    held: dict[str, list[str]]
    prepares: dict[str, dict[str, int]]

    @classmethod
    def of(cls, formed: Ring) -> "Standing":
        pods, rack = formed.pods, formed.rack
        workers = {
            multi_node_job.node_of(pods, rank): multi_node_job.container_of(pods, rank)
            for rank in (0, 1)
        }
        return cls(
            workers,
            formed.domain.daemons(),
            compute_domains.node_indexes(pods, NAME),
            {node: compute_domains.claim_specs(rack, node) for node in workers},
            {node: compute_domains.prepare_counts(rack, node) for node in workers},
        )


@dataclass(frozen=True)
class Watch:
    """The recordings of a ring."""

    imex: dict[str, ImexRecording]
    cliques: Recording
    domain: Recording

    def not_told(self) -> str | None:
        """The last recorded status unless it is Ready; the watch is a bit late."""
        last = (
            self.domain.observations[-1].content["object"]["status"]
            if self.domain.observations
            else {}
        )
        return None if last.get("status") == "Ready" else str(last)

    def unshaken(self, began: float) -> str | None:
        """Who has not shown since a moment that a daemon was lost: the domain, or a node's IMEX."""
        told = [each.content["object"]["status"] for each in self.domain.since(began)]
        found = [node for node, each in self.imex.items() if not each.seconds_until_up(began)]
        if not any(each["status"] == "NotReady" for each in told):
            found.append(f"domain {NAME}")
        return ", ".join(found) or None

    def not_up(self) -> str | None:
        """The nodes whose IMEX did not report UP last."""
        last = {
            node: each.observations[-1].content.get("status")
            for node, each in self.imex.items()
            if each.observations
        }
        return None if list(last.values()) == ["UP"] * len(self.imex) else str(last)


@contextmanager
def watching(formed: Ring) -> Iterator[Watch]:
    """Record everything while the block runs; all nodes are up at its beginning."""
    chosen = f"{names.DOMAIN_LABEL}={formed.domain.uid}"
    with ExitStack() as stack:
        enter = stack.enter_context
        watch = Watch(
            {
                node: enter(recorders.record_imex(formed.domain, node))
                for node in formed.domain.daemons()
            },
            enter(
                recorders.record_versions(
                    formed.rack.driver_namespace, "computedomaincliques", "-l", chosen
                )
            ),
            enter(recorders.record_versions(formed.pods, "computedomain", NAME)),
        )
        formed.pods.wait(watch.not_up, "IMEX to be UP at first", BACK_S)
        formed.pods.wait(watch.not_told, "the domain's watch to have begun", BACK_S)
        yield watch


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.happens.__name__)
def test_a_job_is_seen_through_although(formed: Ring, fault: Fault) -> None:
    pods = formed.pods
    before = Standing.of(formed)
    nodes = [multi_node_job.node_of(pods, rank) for rank in (0, 1)]
    with watching(formed) as watch:
        up = time.monotonic()
        job = launched(pods)
        began = time.monotonic()
        fault.happens(formed)
        # Before it is noticed, all is as it was, and the waits below would end at once.
        if fault.workers:
            started_again = partial(multi_node_job.not_started_again, pods, job)
            pods.wait(started_again, f"job {job} to start its work again", WORKERS_S)
        else:
            pods.wait(partial(watch.unshaken, began), "everybody to notice it", BACK_S)
        wait_workers(pods)
        killed = {before.daemons[nodes[rank]] for rank in fault.daemons}
        pods.wait(partial(unreplaced, formed.domain, killed), "a daemon on each node", BACK_S)
        pods.wait(watch.not_up, "IMEX to be UP again", BACK_S)
        compute_domains.wait_ready(pods, NAME, 2, BACK_S)
        pods.wait(watch.not_told, "the domain's watch to tell of it", BACK_S)
        wait_succeeded(pods, job)
    after = Standing.of(formed)

    assert (multi_node_job.start_count(pods, job) > 1) == bool(fault.workers)
    assert list(after.workers) == nodes
    others = {nodes[rank] for rank in fault.workers}
    gone = {node for node in nodes if after.daemons[node] != before.daemons[node]}
    # Between two workers, a node is without its label for less than Kubernetes may pause: then its
    # daemon stays.
    killed_on = {nodes[rank] for rank in fault.daemons}
    assert killed_on <= gone <= others | killed_on
    if gone:
        for node, answers in watch.imex.items():
            name = dns_names.of_domain(DomainUID(formed.domain.uid), "domain").name(
                before.indexes[node]
            )
            check_imex(answers, up, began, name, is_survivor=node not in gone)
        check_status(watch.domain)
        assert len(watch.cliques.observations) > 1
    check_clique(watch.cliques, before.indexes)
    assert after.indexes == before.indexes
    for node in nodes:
        check_node(before, after, node, is_other=node in others, is_gone=node in gone)
    for rank in (0, 1):
        assert compute_domains.channels(pods, f"worker-{rank}") == {"channel0"}


def check_imex(
    answers: ImexRecording, up: float, began: float, name: str, *, is_survivor: bool
) -> None:
    """The IMEX of a surviving node reports UP, then another state, then UP again, with one name.

    A daemon is READY before it is connected; UP is what both have been since `up`.
    """
    states = answers.states(up)
    assert states[0] == states[-1] == "UP"
    assert answers.seconds_until_up(began) < BACK_S
    assert answers.names() == {name}
    if is_survivor:
        assert all(each.content for each in answers.observations), "it answers all the time"
        assert set(states) > {"UP"}, "it tells that the other one is lost"
    else:
        assert answers.seconds_until_up(began) > 0, (
            "where it was replaced there was silence at least"
        )


def check_clique(record: Recording, indexes: dict[str, int]) -> None:
    """In every version of the clique, a node has at most one entry, with its own index."""
    for seen in record.observations:
        entries = [
            (one["nodeName"], one["index"]) for one in seen.content["object"].get("daemons", [])
        ]
        assert len(dict(entries)) == len(entries), entries
        assert set(entries) <= set(indexes.items()), entries


def check_status(record: Recording) -> None:
    """The domain's status becomes NotReady, and then Ready again."""
    said = [seen.content["object"]["status"]["status"] for seen in record.observations]
    assert said[0] == said[-1] == "Ready"
    assert "NotReady" in said


def check_node(
    before: Standing, after: Standing, node: str, *, is_other: bool, is_gone: bool
) -> None:
    """What the fault did not hit is unchanged, and nothing was prepared again for it."""
    anew = {
        kind: after.prepares[node][kind] - before.prepares[node][kind]
        for kind in ("channel", "daemon")
    }
    assert (after.workers[node] != before.workers[node]) == is_other
    assert (anew["channel"] > 0) == is_other, anew
    assert (anew["daemon"] > 0) == is_gone, anew
    if not is_other and not is_gone:
        assert after.held[node] == before.held[node]


def test_a_kubelet_that_restarts_changes_nothing(formed: Ring) -> None:
    pods, node = formed.pods, multi_node_job.node_of(formed.pods, 0)
    containers = [multi_node_job.container_of(pods, rank) for rank in (0, 1)]
    daemons, held = formed.domain.daemons(), compute_domains.claim_specs(formed.rack, node)
    job = launched(pods)
    formed.rack.lab.run_checked("restart", f"{node}/kubelet")
    wait_succeeded(pods, job)
    assert [multi_node_job.container_of(pods, rank) for rank in (0, 1)] == containers
    assert formed.domain.daemons() == daemons
    assert compute_domains.claim_specs(formed.rack, node) == held
    compute_domains.wait_ready(pods, NAME, 2)


def test_a_plugin_that_restarts_changes_nothing(formed: Ring) -> None:
    pods, node = formed.pods, multi_node_job.node_of(formed.pods, 1)
    containers = [multi_node_job.container_of(pods, rank) for rank in (0, 1)]
    daemons, held = formed.domain.daemons(), compute_domains.claim_specs(formed.rack, node)
    formed.rack.restart_plugin(node)
    assert [multi_node_job.container_of(pods, rank) for rank in (0, 1)] == containers
    assert formed.domain.daemons() == daemons
    assert compute_domains.claim_specs(formed.rack, node) == held
    assert formed.domain.labelled_nodes() == set(daemons)
    compute_domains.wait_ready(pods, NAME, 2)


def test_an_imex_that_came_back_and_waits_for_a_peer_is_told_on_the_domain(formed: Ring) -> None:
    rack, pods = formed.rack, formed.pods
    indexes = compute_domains.node_indexes(pods, NAME)
    node, peer = sorted(indexes)
    rack.simctl(peer, "imex", "set", "--refuse", str(indexes[node]))
    try:
        rack.simctl(node, "imex", "crash")
        pods.wait(
            partial(
                compute_domains.not_described, pods, NAME, f"{node}: nvidia-imex ended by itself"
            ),
            "the domain to say whose IMEX it is",
        )
        asked = ("exec", formed.domain.daemons()[node], "--", *QUERY)
        rack.driver_namespace.wait(
            lambda: unless_waiting(rack.driver_namespace.run_unchecked(*asked)),
            "it to wait for whom it was connected with",
        )
        assert compute_domains.status(pods, NAME)["status"] == "NotReady"
    finally:
        rack.simctl(peer, "imex", "clear")
    compute_domains.wait_ready(pods, NAME, 2, BACK_S)


def unless_waiting(asked: CompletedProcess[str]) -> str | None:
    """The output of nvidia-imex-ctl unless IMEX is waiting; it fails while IMEX is starting."""
    return None if "WAITING_FOR_RECOVERY" in asked.stdout else asked.stdout + asked.stderr


def launched(pods: Kubectl) -> str:
    """Start a run of the job, and return its name once it has traffic."""
    job = f"run-{next(_jobs)}"
    pods.apply(multi_node_job.launcher(job))
    pods.wait(partial(multi_node_job.has_traffic, pods, job), f"traffic of {job}", BACK_S)
    return job


def wait_succeeded(pods: Kubectl, job: str) -> None:
    """Let a run of the job end, and wait until it has succeeded."""
    pods.wait(partial(multi_node_job.not_succeeded, pods, job), f"job {job} to succeed", BACK_S)


def unreplaced(domain: Domain, killed: set[str]) -> str | None:
    """The domain's daemons unless each node has one, and none of the killed ones is left."""
    daemons = domain.daemons()
    return str(daemons) if len(daemons) < 2 or killed & set(daemons.values()) else None


def wait_workers(pods: Kubectl) -> None:
    """Wait until both workers run; a replaced worker is missing for a moment."""
    for rank in (0, 1):
        name = f"worker-{rank}"

        def lacking(name: str = name) -> str | None:
            found = pods.run_unchecked(
                "get", "pod", name, "-o", "jsonpath={.metadata.deletionTimestamp}"
            )
            if found.returncode != 0 or found.stdout:
                return found.stderr or "it is being deleted"
            return pods.not_ready(name)

        pods.wait(lacking, f"{name} to run", WORKERS_S)
