# SPDX-License-Identifier: Apache-2.0
"""The first process of a domain's daemon is killed while a claim waits for it."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from nvdra_api import names
from nvdra_testing.cluster import compute_domains, lab_command
from nvdra_testing.cluster.compute_domains import Domain
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl

NAME = "ring"
DAEMON, IMEX = names.DAEMON_CONTAINER, "nvidia-imex"
STARTED_S = 120
NOTICED_S = 30
"""A status is 5 s late at most; the kubelet's look at its containers takes its time before that."""
RUNNING_S = 150
"""After two restarts of a container, the kubelet waits 20 s before the next one."""


def processes(rack: Cluster, program: str) -> list[int]:
    """The processes of the lab's pods that run a program, as this machine numbers them."""
    return [pid for pid in lab_command.processes() if runs(rack, pid, program)]


def runs(rack: Cluster, pid: int, program: str) -> bool:
    """Whether a process of the lab runs a program, itself or by an interpreter."""
    process = Path(f"/proc/{pid}")
    try:
        words = (process / "cmdline").read_text().split("\0")[:2]
        cgroup = (process / "cgroup").read_text()
    except OSError:  # it has ended
        return False
    return f"/nvdra-lab-{rack.lab.name}/" in cgroup and program in {Path(w).name for w in words}


def first_process(rack: Cluster) -> int | None:
    """The only daemon's first process, whose end ends its container."""
    return min(processes(rack, DAEMON), default=None)


def kill_when(rack: Cluster, is_so: Callable[[], bool], what: str) -> None:
    """Kill the only daemon as soon as something is so, and wait for its end."""
    until = time.monotonic() + STARTED_S
    while not is_so() or (pid := first_process(rack)) is None:
        assert time.monotonic() < until, f"waited for {what}"
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    while runs(rack, pid, DAEMON):
        assert time.monotonic() < until, f"waited for the end of {pid}"
        time.sleep(0.02)


def not_back(rack: Cluster, domain: Domain, restarts: int) -> str | None:
    """Why the only daemon has not been restarted so often, with one IMEX that is READY."""
    (pod,) = domain.objects("pods")
    count = sum(each["restartCount"] for each in pod["status"].get("containerStatuses", []))
    peers = domain.imex_status(pod["spec"]["nodeName"]).get("nodes", {}).values()
    own = [each["status"] for each in peers if each["hostName"] == pod["metadata"]["name"]]
    seen = (count, len(processes(rack, IMEX)), own)
    return None if seen == (restarts, 1, ["READY"]) else str(seen)


@pytest.mark.timeout(800, func_only=True)
def test_a_claim_that_waits_for_a_killed_daemon_is_admitted_by_the_one_that_lives(
    rack: Cluster, team: Kubectl
) -> None:
    domain = Domain(rack, compute_domains.create_domain(team, NAME, nodes=1))
    with compute_domains.dumb_imex(rack):  # so that no claim is faster than the test
        team.apply(compute_domains.channel_pod("p", compute_domains.template_name(NAME)))
        kill_when(rack, lambda: True, "the daemon's start")
        assert team.not_ready("p"), "the claim waits for a daemon that has not begun"
        kill_when(rack, lambda: bool(processes(rack, IMEX)), "the start of its IMEX")
        assert team.not_ready("p"), "the claim waits for a daemon whose IMEX has just begun"
    team.wait(partial(not_back, rack, domain, 2), "the daemon to be back twice", RUNNING_S)
    team.wait_running("p", timeout_s=RUNNING_S)
    assert compute_domains.channels(team, "p") == {"channel0"}
    compute_domains.wait_ready(team, NAME, 1)

    # Killed under a pod that has its channel: the pod stays, and the status says what is true.
    kill_when(rack, lambda: True, "the daemon")
    team.wait(partial(still_ready, team), "the status to say that the daemon is away", NOTICED_S)
    team.wait(partial(not_back, rack, domain, 3), "the daemon to be back again", RUNNING_S)
    compute_domains.wait_ready(team, NAME, 1)
    assert compute_domains.channels(team, "p") == {"channel0"}

    team.delete("pod", "p")
    team.delete("computedomain", NAME)
    domain.wait_gone()
    compute_domains.wait_released(rack)


def still_ready(team: Kubectl) -> str | None:
    status = compute_domains.status(team, NAME)
    return str(status) if status.get("status") == "Ready" else None
