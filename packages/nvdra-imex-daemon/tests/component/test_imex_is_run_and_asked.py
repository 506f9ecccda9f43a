"""Daemons with the simulated nvidia-imex: READY is published, peers connect, crashes heal."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from imexd import PROGRAM, Pod, Rack

TWO = ("node-a", "node-b")
THREE = (*TWO, "node-c")


def formed(rack: Rack, *nodes: str) -> list[Pod]:
    """Daemons on these nodes, all Ready and connected with each other."""
    rack.equip(*nodes)
    pods = [rack.start(node) for node in nodes]
    rack.until(lambda: rack.are_ready(*nodes), "all to be Ready")
    rack.until(lambda: rack.are_connected(*pods), "all to be connected")
    return pods


def message(rack: Rack, node: str) -> str:
    return str(rack.entries().get(node, {}).get("message", ""))


def starts(pod: Pod) -> int:
    return int(pod.status().get("imex", {}).get("starts", 0))


def test_daemons_are_ready_and_connected_under_names_that_each_has_for_all(rack: Rack) -> None:
    pods = formed(rack, *THREE)
    for pod in pods:
        assert pod.is_ready()
        assert pod.names() == rack.names()
        assert "message" not in rack.entries()[pod.node]
        assert pod.status()["isReady"]
        assert starts(pod) == 1
        assert "READY" in pod.output()


def test_a_clique_of_fewer_nodes_than_it_has_places_is_degraded_to_imex_and_ready(
    rack: Rack,
) -> None:
    pods = formed(rack, *TWO)
    assert [rack.domain_state(pod) for pod in pods] == ["DEGRADED", "DEGRADED"]
    assert all(pod.is_ready() for pod in pods)


def test_the_log_says_at_1_who_the_peers_are_and_at_6_what_the_api_server_was_asked(
    rack: Rack,
) -> None:
    rack.equip(*TWO)
    pods = [rack.start(node, f"-v={level}") for node, level in zip(TWO, (1, 6), strict=True)]
    rack.until(lambda: rack.are_ready(*TWO), "both to be Ready")
    logs = [(pod.directory / "log").read_text() for pod in pods]
    assert ["Named the peers" in log for log in logs] == [True, True]
    assert ["asked the API server verb=" in log for log in logs] == [False, True]


def test_a_member_that_joins_later_is_found_without_a_restart(rack: Rack) -> None:
    first, second = formed(rack, *TWO)
    rack.equip("node-c")
    third = rack.start("node-c")
    rack.until(lambda: rack.are_ready(*THREE), "the third to be Ready")
    rack.until(lambda: rack.are_connected(first, second, third), "connections of all three")
    assert [starts(pod) for pod in (first, second, third)] == [1, 1, 1]


def test_a_daemon_that_is_killed_comes_back_under_its_name_and_nobody_else_restarts(
    rack: Rack,
) -> None:
    first, second = formed(rack, *TWO)
    before = rack.indexes()
    first.stop(signal.SIGKILL)
    rack.until(lambda: "CONNECTED" not in _to(rack, second, before["node-a"]), "the loss")
    again = rack.start("node-a")
    rack.until(lambda: rack.entries()["node-a"]["podUID"] == again.uid, "the successor")
    rack.until(lambda: rack.are_ready(*TWO), "both to be Ready")
    rack.until(lambda: rack.are_connected(again, second), "both to be connected", 30)
    assert rack.indexes() == before
    assert again.ip != first.ip
    assert starts(second) == 1


def _to(rack: Rack, pod: Pod, index: int) -> str:
    return rack.connections(pod).get(index, "")


def test_readiness_of_a_predecessor_is_not_inherited(rack: Rack) -> None:
    (first,) = formed(rack, "node-a")
    first.stop(signal.SIGKILL)
    assert rack.are_ready("node-a"), "nobody has told that it is gone"
    rack.disturb("node-a", never_ready=True)
    again = rack.start("node-a")
    rack.until(lambda: rack.entries()["node-a"]["podUID"] == again.uid, "the successor")
    assert rack.entries()["node-a"]["status"] == "NotReady"


def test_a_predecessor_that_still_runs_makes_way_for_its_successors_imex(rack: Rack) -> None:
    (old,) = formed(rack, "node-a")
    new = rack.start("node-a")
    rack.until(lambda: rack.entries()["node-a"]["podUID"] == new.uid, "the successor")
    rack.until(lambda: rack.are_ready("node-a"), "Ready, by the successor's IMEX", 10)
    assert old.process.poll() is None
    assert old.imex_pids() == []
    assert len(new.imex_pids()) == 1


def test_an_imex_that_is_killed_is_started_again_and_meanwhile_not_ready(rack: Rack) -> None:
    (pod,) = formed(rack, "node-a")
    rack.disturb("node-a", slow_start_ms=1000)
    (imex,) = pod.imex_pids()
    os.kill(imex, signal.SIGKILL)
    rack.until(lambda: not rack.are_ready("node-a"), "NotReady")
    assert "nvidia-imex ended by itself with signal SIGKILL" in message(rack, "node-a")
    rack.until(lambda: rack.are_ready("node-a"), "Ready again")
    assert starts(pod) == 2
    assert 'nvdra_imex_restarts_total{reason="signal"} 1.0' in pod.get("/metrics")[1]


def test_not_ready_is_another_word_than_ready(rack: Rack) -> None:
    rack.equip("node-a")
    rack.disturb("node-a", never_ready=True)
    pod = rack.start("node-a")
    rack.until(lambda: message(rack, "node-a") == "nvidia-imex says NOT_READY", "the word")
    assert pod.get("/readyz")[0] == 503
    assert "DaemonNotReady: nvidia-imex says NOT_READY" in pod.get("/readyz")[1]
    rack.until(lambda: len(rack.events("DaemonNotReady")) == 2, "Events after ten seconds")
    kinds = {event["involvedObject"]["kind"] for event in rack.events("DaemonNotReady")}
    assert kinds == {"Pod", "ComputeDomain"}
    assert rack.events("DaemonNotReady")[0]["message"].startswith("node node-a: nvidia-imex says")
    rack.disturb("node-a")
    rack.until(lambda: rack.are_ready("node-a"), "Ready")
    rack.until(pod.is_ready, "its probe")


def test_an_imex_that_was_ready_and_is_no_more_is_found_out(rack: Rack) -> None:
    formed(rack, "node-a")
    rack.disturb("node-a", never_ready=True)
    rack.until(lambda: not rack.are_ready("node-a"), "NotReady")
    rack.disturb("node-a")
    rack.until(lambda: rack.are_ready("node-a"), "Ready")


def test_an_imex_that_starts_costs_two_writes_and_a_slow_one_says_so(rack: Rack) -> None:
    rack.equip("node-a", "node-b")
    rack.start("node-a")
    rack.until(lambda: rack.are_ready("node-a"), "Ready")
    assert rack.clique()["metadata"]["generation"] <= 2
    rack.disturb("node-b", slow_start_ms=4000)
    rack.start("node-b")
    rack.until(lambda: message(rack, "node-b") == "nvidia-imex says INITIALIZING", "the word")
    rack.until(lambda: rack.are_ready(*TWO), "both to be Ready")


def test_without_its_program_the_reason_is_told_everywhere_and_it_goes_on(rack: Rack) -> None:
    pod = rack.start("node-a")
    rack.until(lambda: "ImexBinaryMissing" in message(rack, "node-a"), "the entry's message")
    rack.until(lambda: len(rack.events("ImexBinaryMissing")) == 2, "Events")
    told = rack.events("ImexBinaryMissing")[0]
    assert "install nvidia-imex" in told["message"]
    trace = told["metadata"]["annotations"]["nvdra.nvidia.com/trace-id"]
    assert trace == rack.uid.replace("-", "")
    assert "ImexBinaryMissing" in pod.get("/readyz")[1]
    assert pod.process.poll() is None
    assert pod.stop() == 0
    assert rack.entries() == {}


def test_a_peer_that_does_not_answer_after_a_crash_is_waited_for_and_that_is_told(
    rack: Rack,
) -> None:
    first, second = formed(rack, *TWO)
    (silent,), (crashing,) = second.imex_pids(), first.imex_pids()
    os.kill(silent, signal.SIGSTOP)
    os.kill(crashing, signal.SIGKILL)
    words = "now nvidia-imex says WAITING_FOR_QUORUM"
    rack.until(lambda: words in message(rack, "node-a"), "the word")
    assert message(rack, "node-a").startswith("nvidia-imex ended by itself with signal SIGKILL")

    def told() -> set[str]:
        events = [e for e in rack.events("DaemonNotReady") if words in e["message"]]
        return {event["involvedObject"]["kind"] for event in events}

    rack.until(lambda: told() == {"Pod", "ComputeDomain"}, "Events after ten seconds")
    os.kill(silent, signal.SIGCONT)
    rack.until(lambda: rack.are_ready(*TWO), "both to be Ready")


def test_told_to_stop_it_ends_imex_in_order_and_leaves(rack: Rack) -> None:
    first, second = formed(rack, *TWO)
    assert first.stop() == 0
    assert set(rack.entries()) == {"node-b"}
    assert "ended by itself" not in first.log()
    rack.until(lambda: second.names() == rack.names(), "the other's names")
    rack.until(lambda: "DISCONNECTED" in rack.connections(second).values(), "the goodbye")


def test_it_leaves_also_while_imex_does_not_end(rack: Rack) -> None:
    (pod,) = formed(rack, "node-a")
    rack.disturb("node-a", hang=True)
    rack.until(lambda: "a fault lets this daemon hang" in pod.output(), "it to hang")
    began = time.monotonic()
    os.kill(pod.pid, signal.SIGTERM)
    rack.until(lambda: rack.entries() == {}, "its entry to go", 3)
    assert pod.process.wait(timeout=20) == 0
    assert 5 < time.monotonic() - began < 15
    assert "Killing nvidia-imex, which did not end" in pod.log()


def test_check_says_what_the_probe_of_the_reference_says(rack: Rack) -> None:
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
    rack.disturb("node-a", never_ready=True)
    rack.until(lambda: check().returncode == 1, "it to know of that")
    told = check()
    assert told.stderr == "Error: not ready: nvidia-imex says NOT_READY\n"


def _environ(pod: Pod) -> Mapping[str, str]:
    items = Path(f"/proc/{pod.pid}/environ").read_text().split("\0")
    return {name: value for name, _, value in (item.partition("=") for item in items if item)}


def test_an_api_server_that_is_away_stops_no_imex(rack: Rack) -> None:
    first, second = formed(rack, *TWO)
    rack.server.stop()
    (imex,) = first.imex_pids()
    os.kill(imex, signal.SIGKILL)
    rack.until(lambda: starts(first) == 2 and first.imex_pids(), "its IMEX to come back")
    assert rack.connections(second)
    rack.server.run()
    rack.until(lambda: rack.are_ready(*TWO), "both to be Ready")
    rack.until(lambda: rack.are_connected(first, second), "connections")


def test_the_daemon_without_its_child_is_small(rack: Rack) -> None:
    for pod in formed(rack, *TWO):
        assert pod.resident_mib() <= 80
