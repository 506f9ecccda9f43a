"""Workers, daemons and kubelets go down while a job runs: it is seen through, and nothing moves."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from subprocess import CompletedProcess

import members
import overtime
import pytest
import ring
from cluster import Cluster
from kubectl import Kubectl
from members import Domain
from nvdra_api.types import names
from overtime import Answers, Record

pytestmark = pytest.mark.timeout(300, func_only=True)

NAME = "ring"
QUERY = ("nvidia-imex-ctl", "-c", "/imexd/imexd.cfg", "-q")
JOB_S, BACK_S = 300, 30

_jobs = count(1)


@dataclass(frozen=True)
class Ring:
    """A domain with a worker on each node."""

    rack: Cluster
    pods: Kubectl
    domain: Domain

    def daemon_of(self, rank: int) -> str:
        """The daemon's pod beside a worker."""
        return self.domain.daemons()[ring.node_of(self.pods, rank)]

    def kill_daemons(self, *ranks: int) -> None:
        """End daemons without a word."""
        ring.kill(self.rack.driver, *(self.daemon_of(rank) for rank in ranks))


@pytest.fixture(scope="module")
def formed(rack: Cluster) -> Iterator[Ring]:
    """Formed once for all tests of this file; afterwards nothing is left of it anywhere."""
    with rack.kubectl.fresh_namespace() as pods:
        domain = Domain(rack, members.apply(pods, NAME, nodes=2))
        for item in ring.workers(members.channel_of(NAME)):
            pods.apply(item)
        wait_workers(pods)
        members.wait_ready(pods, NAME, 2)
        yield Ring(rack, pods, domain)
        pods.delete("statefulset", "worker")
        pods.wait(
            lambda: pods.run("get", "pods", "-l", "app=worker", "--no-headers") or None,
            "the workers to be gone",
        )
        pods.delete("computedomain", NAME)
        domain.wait_gone()
        members.wait_released(rack)


def worker_killed(formed: Ring) -> None:
    ring.kill(formed.pods, "worker-0")


def worker_deleted(formed: Ring) -> None:
    formed.pods.run("delete", "pod", "worker-1", "--wait=false")


def one_daemon_killed(formed: Ring) -> None:
    formed.kill_daemons(0)


def all_daemons_killed(formed: Ring) -> None:
    formed.kill_daemons(0, 1)


@dataclass(frozen=True)
class Fault:
    """Something that happens while a job runs.

    Attributes:
        happens: Brings it about.
        workers: Those that are others afterwards.
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
    """How a ring stands at one moment; keys are nodes.

    Attributes:
        workers: The worker's pod and container.
        daemons: The daemon's pod.
        indexes: Place in the clique.
        held: The specs of what is prepared.
        prepares: How many prepares there have been, by kind.
    """

    workers: dict[str, tuple[str, str]]
    daemons: dict[str, str]
    indexes: dict[str, int]
    held: dict[str, list[str]]
    prepares: dict[str, dict[str, int]]

    @classmethod
    def of(cls, formed: Ring) -> "Standing":
        pods, rack = formed.pods, formed.rack
        workers = {ring.node_of(pods, rank): ring.container_of(pods, rank) for rank in (0, 1)}
        return cls(
            workers,
            formed.domain.daemons(),
            members.places(pods, NAME),
            {node: members.held(rack, node) for node in workers},
            {node: members.prepares(rack, node) for node in workers},
        )


@dataclass(frozen=True)
class Watch:
    """What was seen of a ring over time."""

    imex: dict[str, Answers]
    cliques: Record
    domain: Record

    def not_told(self) -> str | None:
        """What the domain was last seen to say, unless that it is Ready: a watch is a bit late."""
        last = self.domain.seen[-1].what["object"]["status"] if self.domain.seen else {}
        return None if last.get("status") == "Ready" else str(last)

    def not_up(self) -> str | None:
        """Which node's IMEX did not say UP at last."""
        last = {
            node: each.seen[-1].what.get("status") for node, each in self.imex.items() if each.seen
        }
        return None if list(last.values()) == ["UP"] * len(self.imex) else str(last)


@contextmanager
def watching(formed: Ring) -> Iterator[Watch]:
    """Watch all of it while the block runs; everything is up at its beginning."""
    chosen = f"{names.DOMAIN_LABEL}={formed.domain.uid}"
    with ExitStack() as stack:
        enter = stack.enter_context
        watch = Watch(
            {node: enter(overtime.asked(formed.domain, node)) for node in formed.domain.daemons()},
            enter(overtime.watched(formed.rack.driver, "computedomaincliques", "-l", chosen)),
            enter(overtime.watched(formed.pods, "computedomain", NAME)),
        )
        formed.pods.wait(watch.not_up, "IMEX to be UP at first", BACK_S)
        formed.pods.wait(watch.not_told, "the domain's watch to have begun", BACK_S)
        yield watch


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.happens.__name__)
def test_a_job_is_seen_through_although(formed: Ring, fault: Fault) -> None:
    pods = formed.pods
    before = Standing.of(formed)
    nodes = [ring.node_of(pods, rank) for rank in (0, 1)]
    with watching(formed) as watch:
        up = time.monotonic()
        job = launched(pods)
        began = time.monotonic()
        fault.happens(formed)
        assert ring.not_succeeded(pods, job), "the job runs while it happens"
        pods.wait(partial(ring.not_succeeded, pods, job), f"job {job} to succeed", JOB_S)
        wait_workers(pods)
        members.wait_ready(pods, NAME, 2, BACK_S)
        pods.wait(watch.not_up, "IMEX to be UP again", BACK_S)
        pods.wait(watch.not_told, "the domain's watch to tell of it", BACK_S)
    after = Standing.of(formed)

    assert (ring.begun(pods, job) > 1) == bool(fault.workers)
    assert list(after.workers) == nodes
    others = {nodes[rank] for rank in fault.workers}
    gone = {node for node in nodes if after.daemons[node] != before.daemons[node]}
    assert gone == others | {nodes[rank] for rank in fault.daemons}
    for node, answers in watch.imex.items():
        check_imex(answers, up, began, before.indexes[node], is_survivor=node not in gone)
    check_clique(watch.cliques, before.indexes)
    check_status(watch.domain)
    assert after.indexes == before.indexes
    for node in nodes:
        check_node(before, after, node, is_other=node in others, is_gone=node in gone)
    for rank in (0, 1):
        assert members.channels(pods, f"worker-{rank}") == {"channel0"}


def check_imex(answers: Answers, up: float, began: float, index: int, *, is_survivor: bool) -> None:
    """UP, then not UP, of a survivor by its own word, then UP again in time; under one name.

    A daemon is READY before it is connected: UP is what both have been since `up`.
    """
    states = answers.states(up)
    assert states[0] == states[-1] == "UP"
    assert answers.up_after(began) < BACK_S
    assert answers.names() == {f"compute-domain-daemon-{index:04}"}
    if is_survivor:
        assert all(each.what for each in answers.seen), "it answers all the time"
        assert set(states) > {"UP"}, "it tells that the other one is lost"
    else:
        assert answers.up_after(began) > 0, "where it was replaced there was silence at least"


def check_clique(record: Record, indexes: dict[str, int]) -> None:
    """In every version that there was a node has one entry at most, and its own index."""
    assert len(record.seen) > 1
    for seen in record.seen:
        entries = [
            (one["nodeName"], one["index"]) for one in seen.what["object"].get("daemons", [])
        ]
        assert len(dict(entries)) == len(entries), entries
        assert set(entries) <= set(indexes.items()), entries


def check_status(record: Record) -> None:
    """The domain is told to be NotReady, and to be Ready again."""
    said = [seen.what["object"]["status"]["status"] for seen in record.seen]
    assert said[0] == said[-1] == "Ready"
    assert "NotReady" in said


def check_node(
    before: Standing, after: Standing, node: str, *, is_other: bool, is_gone: bool
) -> None:
    """What was not hit is what it was, and nothing was prepared anew for it."""
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
    pods, node = formed.pods, ring.node_of(formed.pods, 0)
    containers = [ring.container_of(pods, rank) for rank in (0, 1)]
    daemons, held = formed.domain.daemons(), members.held(formed.rack, node)
    job = launched(pods)
    formed.rack.lab.must("restart", f"{node}/kubelet")
    pods.wait(partial(ring.not_succeeded, pods, job), f"job {job} to succeed", JOB_S)
    assert [ring.container_of(pods, rank) for rank in (0, 1)] == containers
    assert formed.domain.daemons() == daemons
    assert members.held(formed.rack, node) == held
    members.wait_ready(pods, NAME, 2)


def test_a_plugin_that_restarts_changes_nothing(formed: Ring) -> None:
    pods, node = formed.pods, ring.node_of(formed.pods, 1)
    containers = [ring.container_of(pods, rank) for rank in (0, 1)]
    daemons, held = formed.domain.daemons(), members.held(formed.rack, node)
    formed.rack.restart_plugin(node)
    assert [ring.container_of(pods, rank) for rank in (0, 1)] == containers
    assert formed.domain.daemons() == daemons
    assert members.held(formed.rack, node) == held
    assert formed.domain.nodes() == set(daemons)
    members.wait_ready(pods, NAME, 2)


def test_an_imex_that_came_back_and_waits_for_a_peer_is_told_on_the_domain(formed: Ring) -> None:
    rack, pods = formed.rack, formed.pods
    indexes = members.places(pods, NAME)
    node, peer = sorted(indexes)
    rack.sim(peer, "imex", "set", "--refuse", str(indexes[node]))
    try:
        rack.sim(node, "imex", "crash")
        pods.wait(
            partial(members.not_told, pods, NAME, f"{node}: nvidia-imex ended by itself"),
            "the domain to say whose IMEX it is",
        )
        asked = ("exec", formed.domain.daemons()[node], "--", *QUERY)
        rack.driver.wait(
            lambda: unless_waiting(rack.driver.attempt(*asked)),
            "it to wait for whom it was connected with",
        )
        assert members.status(pods, NAME)["status"] == "NotReady"
    finally:
        rack.sim(peer, "imex", "clear")
    members.wait_ready(pods, NAME, 2, 2 * BACK_S)


def unless_waiting(asked: CompletedProcess[str]) -> str | None:
    """What nvidia-imex-ctl said, unless that IMEX waits; of one that just starts, that it fails."""
    return None if "WAITING_FOR_QUORUM" in asked.stdout else asked.stdout + asked.stderr


def launched(pods: Kubectl) -> str:
    """A run of the job that has traffic; its name."""
    job = f"run-{next(_jobs)}"
    pods.apply(ring.launcher(job))
    pods.wait(partial(ring.has_traffic, pods, job), f"traffic of {job}", 60)
    return job


def wait_workers(pods: Kubectl) -> None:
    """Until both workers run; while one is replaced, there is none of its name for a moment."""
    for rank in (0, 1):
        name = f"worker-{rank}"

        def lacking(name: str = name) -> str | None:
            found = pods.attempt("get", "pod", name, "-o", "jsonpath={.metadata.deletionTimestamp}")
            if found.returncode != 0 or found.stdout:
                return found.stderr or "it is being deleted"
            return pods.not_ready(name)

        pods.wait(lacking, f"{name} to run", 60)
