# SPDX-License-Identifier: Apache-2.0
"""Daemons with the simulated nvidia-imex: readiness, connections, crashes."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from nvdra_imex_daemon.process.lifecycle import SIGNAL_INTERVAL_S
from nvdra_sim.testing.imex_fixtures import needs_ipv6
from nvdra_testing.node.imex_daemons import PROGRAM, DaemonPod, Rack

TWO = ("node-a", "node-b")
THREE = (*TWO, "node-c")
SLOW_START_MS = 120_000
"""Until the test ends this fault."""


def formed(rack: Rack, *nodes: str) -> list[DaemonPod]:
    """Start daemons on these nodes and wait until all are Ready and connected.

    Later signals are for later changes only.
    """
    rack.install_driver(*nodes)
    pods = [rack.start_pod(node) for node in nodes]
    rack.wait_until(lambda: rack.are_ready(*nodes), "all to be Ready")
    rack.wait_until(lambda: rack.are_connected(*pods), "all to be connected")
    rack.wait_until(lambda: all(knows_peers(pod, len(nodes)) for pod in pods), "signals to be sent")
    return pods


def knows_peers(pod: DaemonPod, count: int) -> bool:
    """Whether so many peers are Ready for the daemon, and its IMEX has been told."""
    status = pod.status()
    ready = [peer for peer in status["peers"] if peer["isReady"]]
    return len(ready) == count and not status["imex"]["isSignalDue"]


def message(rack: Rack, node: str) -> str:
    return str(rack.entries().get(node, {}).get("message", ""))


def starts(pod: DaemonPod) -> int:
    return int(pod.status().get("imex", {}).get("starts", 0))


def test_daemons_are_ready_and_connected_by_name(rack: Rack) -> None:
    pods = formed(rack, *THREE)
    for pod in pods:
        assert pod.is_ready()
        assert pod.hosts_entries() == rack.expected_hosts_entries()
        assert "message" not in rack.entries()[pod.node]
        assert pod.status()["isReady"]
        assert starts(pod) == 1
        assert "READY" in pod.imex_log()


def test_a_clique_that_is_not_full_is_degraded_for_imex_and_ready(
    rack: Rack,
) -> None:
    pods = formed(rack, *TWO)
    assert [rack.imex_domain_state(pod) for pod in pods] == ["DEGRADED", "DEGRADED"]
    assert all(pod.is_ready() for pod in pods)


@needs_ipv6
def test_daemons_with_addresses_of_ip_version_6_are_connected(rack: Rack) -> None:
    rack.ip_version = 6
    first, second = formed(rack, *TWO)
    assert first.hosts_entries() == second.hosts_entries() == rack.expected_hosts_entries()
    assert set(rack.expected_hosts_entries().values()) == {first.ip, second.ip}
    first.stop(signal.SIGKILL)
    again = rack.start_pod("node-a")
    rack.wait_until(lambda: rack.entries()["node-a"]["podUID"] == again.uid, "the successor")
    rack.wait_until(lambda: rack.are_connected(again, second), "both to be connected")
    assert again.ip != first.ip


def test_the_log_shows_peers_at_level_1_and_requests_at_level_6(
    rack: Rack,
) -> None:
    rack.install_driver(*TWO)
    pods = [rack.start_pod(node, f"-v={level}") for node, level in zip(TWO, (1, 6), strict=True)]
    rack.wait_until(lambda: rack.are_ready(*TWO), "both to be Ready")
    logs = [(pod.directory / "log").read_text() for pod in pods]
    assert ["Named the peers" in log for log in logs] == [True, True]
    assert ["API request verb=" in log for log in logs] == [False, True]


def test_a_member_that_joins_later_is_connected_without_a_restart(rack: Rack) -> None:
    first, second = formed(rack, *TWO)
    rack.install_driver("node-c")
    third = rack.start_pod("node-c")
    rack.wait_until(lambda: rack.are_ready(*THREE), "the third to be Ready")
    rack.wait_until(lambda: rack.are_connected(first, second, third), "connections of all three")
    assert [starts(pod) for pod in (first, second, third)] == [1, 1, 1]


@pytest.mark.soak
@pytest.mark.parametrize(
    "habits",
    [
        {},
        {"retry_first_ms": 15_000, "retry_ceiling_ms": 125_000},
        {"retry_first_ms": 60_000},
    ],
    ids=["soon", "growing", "every minute"],
)
def test_a_member_that_takes_its_time_to_start_is_connected_soon_after(
    rack: Rack, habits: dict[str, int]
) -> None:
    """However rarely nvidia-imex tries again."""
    rack.install_driver("node-a", "node-b", node={"imex": habits})
    rack.set_imex_faults("node-b", slow_start_ms=3000)
    first = rack.start_pod("node-a")
    rack.wait_until(lambda: rack.are_ready("node-a"), "the first to be Ready")
    second = rack.start_pod("node-b")
    rack.wait_until(lambda: rack.are_ready(*TWO), "both to be Ready")
    rack.wait_until(lambda: rack.are_connected(first, second), "both to be connected", 9)
    rack.wait_until(lambda: signals(first) == 1, "one signal for the member that came")
    assert signals(second) == 0


@pytest.mark.soak
def test_only_a_peer_with_a_new_address_costs_the_others_their_connections(rack: Rack) -> None:
    first, second = formed(rack, *TWO)
    before = signals(first)
    (imex,) = second.imex_pids()
    os.kill(imex, signal.SIGKILL)
    rack.wait_until(lambda: starts(second) == 2 and rack.are_ready(*TWO), "the same address")
    assert second.stop() == 0
    rack.wait_until(lambda: first.hosts_entries() == rack.expected_hosts_entries(), "it to leave")
    with pytest.raises(AssertionError):
        rack.wait_until(lambda: signals(first) > before, "a signal", SIGNAL_INTERVAL_S + 1)
    again = rack.start_pod("node-b")
    rack.wait_until(lambda: rack.are_ready(*TWO), "the successor")
    rack.wait_until(lambda: rack.are_connected(first, again), "its new address")
    assert signals(first) == before + 1


def signals(pod: DaemonPod) -> int:
    return pod.imex_log().count("SIGUSR1: all outgoing connections start again")


def test_a_killed_daemon_comes_back_with_its_name_and_no_other_restarts(
    rack: Rack,
) -> None:
    first, second = formed(rack, *TWO)
    before = rack.indexes()
    first.stop(signal.SIGKILL)
    rack.wait_until(lambda: "CONNECTED" not in _to(rack, second, before["node-a"]), "the loss")
    again = rack.start_pod("node-a")
    rack.wait_until(lambda: rack.entries()["node-a"]["podUID"] == again.uid, "the successor")
    rack.wait_until(lambda: rack.are_ready(*TWO), "both to be Ready")
    rack.wait_until(lambda: rack.are_connected(again, second), "both to be connected")
    assert rack.indexes() == before
    assert again.ip != first.ip
    assert starts(second) == 1


def _to(rack: Rack, pod: DaemonPod, index: int) -> str:
    return rack.imex_connections(pod).get(index, "")


def test_a_predecessors_readiness_is_not_inherited(rack: Rack) -> None:
    (first,) = formed(rack, "node-a")
    first.stop(signal.SIGKILL)
    assert rack.are_ready("node-a"), "nobody has told that it is gone"
    rack.set_imex_faults("node-a", never_ready=True)
    again = rack.start_pod("node-a")
    rack.wait_until(lambda: rack.entries()["node-a"]["podUID"] == again.uid, "the successor")
    assert rack.entries()["node-a"]["status"] == "NotReady"


def test_a_running_predecessor_ends_its_imex_for_its_successor(rack: Rack) -> None:
    (old,) = formed(rack, "node-a")
    new = rack.start_pod("node-a")
    rack.wait_until(lambda: rack.entries()["node-a"]["podUID"] == new.uid, "the successor")
    rack.wait_until(lambda: rack.are_ready("node-a"), "Ready, by the successor's IMEX")
    rack.wait_until(lambda: old.imex_pids() == [], "the end of the predecessor's IMEX")
    assert old.process.poll() is None
    assert len(new.imex_pids()) == 1


def test_a_killed_imex_is_restarted_and_not_ready_meanwhile(rack: Rack) -> None:
    (pod,) = formed(rack, "node-a")
    rack.set_imex_faults("node-a", slow_start_ms=SLOW_START_MS)
    (imex,) = pod.imex_pids()
    os.kill(imex, signal.SIGKILL)
    rack.wait_until(lambda: not rack.are_ready("node-a"), "NotReady")
    assert "nvidia-imex ended by itself with signal SIGKILL" in message(rack, "node-a")
    rack.set_imex_faults("node-a")
    rack.wait_until(lambda: rack.are_ready("node-a"), "Ready again")
    assert starts(pod) == 2
    assert 'nvdra_imex_restarts_total{reason="signal"} 1.0' in pod.get("/metrics")[1]


def test_an_imex_that_is_not_ready_is_reported(rack: Rack) -> None:
    rack.install_driver("node-a")
    rack.set_imex_faults("node-a", never_ready=True)
    pod = rack.start_pod("node-a")
    rack.wait_until(lambda: message(rack, "node-a") == "nvidia-imex says INIT_GPU", "the word")
    assert pod.get("/readyz")[0] == 503
    assert "DaemonNotReady: nvidia-imex says INIT_GPU" in pod.get("/readyz")[1]
    rack.wait_until(lambda: len(rack.events("DaemonNotReady")) == 2, "Events after ten seconds")
    kinds = {event["involvedObject"]["kind"] for event in rack.events("DaemonNotReady")}
    assert kinds == {"Pod", "ComputeDomain"}
    assert rack.events("DaemonNotReady")[0]["message"].startswith("node node-a: nvidia-imex says")
    rack.set_imex_faults("node-a")
    rack.wait_until(lambda: rack.are_ready("node-a"), "Ready")
    rack.wait_until(pod.is_ready, "its probe")


def test_an_imex_that_is_no_longer_ready_is_noticed(rack: Rack) -> None:
    formed(rack, "node-a")
    rack.set_imex_faults("node-a", never_ready=True)
    rack.wait_until(lambda: not rack.are_ready("node-a"), "NotReady")
    rack.set_imex_faults("node-a")
    rack.wait_until(lambda: rack.are_ready("node-a"), "Ready")


def test_a_start_of_imex_costs_two_writes_and_a_slow_one_has_a_message(rack: Rack) -> None:
    rack.install_driver(*THREE)
    rack.start_pod("node-a")
    rack.wait_until(lambda: rack.are_ready("node-a"), "Ready")
    writes = writes_so_far(rack)
    if writes > 2:  # the machine paused for so long that there was something to tell
        rack.start_pod("node-c")
        rack.wait_until(lambda: rack.are_ready("node-a", "node-c"), "both to be Ready")
        writes = writes_so_far(rack) - writes
    assert writes <= 2
    others = set(rack.entries())
    rack.set_imex_faults("node-b", slow_start_ms=SLOW_START_MS)
    rack.start_pod("node-b")
    rack.wait_until(lambda: message(rack, "node-b") == "nvidia-imex says INITIALIZING", "the word")
    rack.set_imex_faults("node-b")
    rack.wait_until(lambda: rack.are_ready("node-b", *others), "all to be Ready")


def writes_so_far(rack: Rack) -> int:
    """How often the clique's entries were written."""
    return int(rack.clique()["metadata"]["generation"])


def test_a_missing_nvidia_imex_is_reported_and_the_daemon_keeps_running(rack: Rack) -> None:
    pod = rack.start_pod("node-a")
    rack.wait_until(lambda: "ImexBinaryMissing" in message(rack, "node-a"), "the entry's message")
    rack.wait_until(lambda: len(rack.events("ImexBinaryMissing")) == 2, "Events")
    told = rack.events("ImexBinaryMissing")[0]
    assert "install nvidia-imex" in told["message"]
    trace = told["metadata"]["annotations"]["nvdra.nvidia.com/trace-id"]
    assert trace == rack.uid.replace("-", "")
    assert "ImexBinaryMissing" in pod.get("/readyz")[1]
    assert pod.process.poll() is None
    assert pod.stop() == 0
    assert rack.entries() == {}


@pytest.mark.soak
def test_waiting_for_a_peer_after_a_crash_is_reported(
    rack: Rack,
) -> None:
    first, second = formed(rack, *TWO)
    (silent,), (crashing,) = second.imex_pids(), first.imex_pids()
    os.kill(silent, signal.SIGSTOP)
    os.kill(crashing, signal.SIGKILL)
    words = "now nvidia-imex says WAITING_FOR_RECOVERY"
    rack.wait_until(lambda: words in message(rack, "node-a"), "the word")
    assert message(rack, "node-a").startswith("nvidia-imex ended by itself with signal SIGKILL")

    def told() -> set[str]:
        events = [e for e in rack.events("DaemonNotReady") if words in e["message"]]
        return {event["involvedObject"]["kind"] for event in events}

    rack.wait_until(lambda: told() == {"Pod", "ComputeDomain"}, "Events after ten seconds")
    os.kill(silent, signal.SIGCONT)
    rack.wait_until(lambda: rack.are_ready(*TWO), "both to be Ready")


def test_a_stopped_daemon_terminates_imex_and_leaves(rack: Rack) -> None:
    first, second = formed(rack, *TWO)
    assert first.stop() == 0
    assert set(rack.entries()) == {"node-b"}
    assert "ended by itself" not in first.log()
    rack.wait_until(
        lambda: second.hosts_entries() == rack.expected_hosts_entries(), "the other's names"
    )
    rack.wait_until(lambda: "DISCONNECTED" in rack.imex_connections(second).values(), "the goodbye")


def test_a_stopped_daemon_leaves_while_imex_hangs(rack: Rack) -> None:
    (pod,) = formed(rack, "node-a")
    rack.set_imex_faults("node-a", hang=True)
    rack.wait_until(lambda: "a fault lets this daemon hang" in pod.imex_log(), "it to hang")
    began = time.monotonic()
    os.kill(pod.pid, signal.SIGTERM)
    rack.wait_until(lambda: rack.entries() == {}, "its entry to go")
    assert pod.process.wait(timeout=30) == 0
    assert time.monotonic() - began > 5
    told = pod.log()
    assert told.index("Left the domain") < told.index("Killing nvidia-imex, which did not end")


def test_check_answers_like_the_reference_drivers_probe(rack: Rack) -> None:
    (pod,) = formed(rack, "node-a")
    environ = _environ(pod)

    def check() -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [PROGRAM, "-v", "4", f"--imex-dir={pod.imexd}", "check"],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )

    assert check().returncode == 0
    rack.set_imex_faults("node-a", never_ready=True)
    rack.wait_until(lambda: check().returncode == 1, "it to know of that")
    told = check()
    assert told.stderr == "Error: not ready: nvidia-imex says INIT_GPU\n"


def _environ(pod: DaemonPod) -> Mapping[str, str]:
    items = Path(f"/proc/{pod.pid}/environ").read_text().split("\0")
    return {name: value for name, _, value in (item.partition("=") for item in items if item)}


@pytest.mark.soak
def test_an_outage_of_the_api_server_does_not_stop_imex(rack: Rack) -> None:
    first, second = formed(rack, *TWO)
    rack.server.stop()
    (imex,) = first.imex_pids()
    os.kill(imex, signal.SIGKILL)
    rack.wait_until(lambda: starts(first) == 2 and first.imex_pids(), "its IMEX to come back")
    assert rack.imex_connections(second)
    rack.server.start()
    rack.wait_until(lambda: rack.are_ready(*TWO), "both to be Ready")
    rack.wait_until(lambda: rack.are_connected(first, second), "connections")


def test_the_daemon_uses_little_memory(rack: Rack) -> None:
    for pod in formed(rack, *TWO):
        assert pod.resident_mib() <= 80
