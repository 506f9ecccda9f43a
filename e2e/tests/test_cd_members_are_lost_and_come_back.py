"""Workers, daemons and kubelets go down while a job runs: it is seen through, and nothing moves."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import members
import pytest
import ring
from cluster import Cluster
from kubectl import Kubectl
from members import Domain

pytestmark = pytest.mark.timeout(300, func_only=True)

NAME = "ring"
JOB_S, BACK_S = 300, 30
LOOK_S = 0.3

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
        domain = Domain(rack, members.apply(pods, NAME))
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


def worker_and_its_daemon_killed(formed: Ring) -> None:
    formed.kill_daemons(1)
    ring.kill(formed.pods, "worker-1")


FAULTS: dict[Callable[[Ring], None], set[int]] = {
    worker_killed: {0},
    worker_deleted: {1},
    one_daemon_killed: set(),
    all_daemons_killed: set(),
    worker_and_its_daemon_killed: {1},
}
"""What happens → the workers that are others afterwards."""


@dataclass
class Watcher:
    """Asks a node's IMEX for the state of the domain, again and again, while a block runs.

    Attributes:
        seen: Each state when it came, in seconds of the monotonic clock; "" for no answer.
    """

    domain: Domain
    node: str
    seen: list[tuple[float, str]] = field(default_factory=list)

    def __enter__(self) -> "Watcher":
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S):
            state = str(self.domain.imex(self.node).get("status", ""))
            if not self.seen or self.seen[-1][1] != state:
                self.seen.append((time.monotonic(), state))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_job_is_seen_through_although(formed: Ring, fault: Callable[[Ring], None]) -> None:
    pods, domain, replaced = formed.pods, formed.domain, FAULTS[fault]
    job = launched(pods)
    before = members.places(pods, NAME)
    containers = {rank: ring.container_of(pods, rank) for rank in (0, 1)}
    nodes = {rank: ring.node_of(pods, rank) for rank in (0, 1)}
    held = {node: members.held(formed.rack, node) for node in nodes.values()}
    witness = nodes[1 if fault in (worker_killed, one_daemon_killed) else 0]

    with Watcher(domain, witness) as watcher:
        pods.wait(lambda: None if watcher.seen else "nothing", "the first look at IMEX")
        began = time.monotonic()
        fault(formed)
        pods.wait(partial(ring.not_succeeded, pods, job), f"job {job} to succeed", JOB_S)
        wait_workers(pods)
        members.wait_ready(pods, NAME, 2, BACK_S)
        pods.wait(
            lambda: None if watcher.seen[-1][1] == "UP" else str(watcher.seen),
            "IMEX to be UP",
            BACK_S,
        )

    assert watcher.seen[0][1] == "UP"
    if fault in (one_daemon_killed, all_daemons_killed, worker_and_its_daemon_killed):
        assert any(state != "UP" for _, state in watcher.seen), "it never went down"
    assert watcher.seen[-1][0] - began < BACK_S, watcher.seen
    after = members.places(pods, NAME)
    if fault is all_daemons_killed:  # their clique goes with the last of them, and is made anew
        assert sorted(after.values()) == [0, 1]
    else:
        assert after == before, "the same index, and so the same name, per node"
    assert sorted(entry["nodeName"] for entry in domain.entries()) == sorted(before), "one each"
    for rank, node in nodes.items():
        assert ring.node_of(pods, rank) == node
        assert members.channels(pods, f"worker-{rank}") == {"channel0"}
        is_same = ring.container_of(pods, rank) == containers[rank]
        assert is_same == (rank not in replaced)
        if fault is worker_killed and is_same:
            assert members.held(formed.rack, node) == held[node], "nothing was prepared anew"


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
