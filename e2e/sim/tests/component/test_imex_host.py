# SPDX-License-Identifier: Apache-2.0
"""What of its host nvidia-imex depends on, and what can be done to it there (§16.1)."""

import json
import os
import signal
import socket
import stat
from collections.abc import Callable
from shutil import copy

import pytest
from nvdra_sim import imex_incidents, incidents
from nvdra_sim.configuration import node_config
from nvdra_sim.errors import ConfigError
from nvdra_sim.filesystem import driver_root
from nvdra_sim.simctl import main
from nvdra_sim.state_file.state import StateError
from nvdra_sim.testing.imex_fixtures import MakeTray, Tray
from nvdra_sim.testing.node_fixtures import MakeNode

HERE = "127.0.0.1"


def ready(tray: Tray) -> Tray:
    tray.configure([HERE])
    tray.start()
    tray.wait_status("READY")
    return tray


def test_both_programs_are_installed_unless_the_node_file_says_otherwise(
    sim_node: MakeNode,
) -> None:
    for name, imex, there in (("with", {}, True), ("without", {"installed": False}, False)):
        node = sim_node("gb200-nvl72", name=name, node={"imex": imex})
        programs = node.roots.driver / driver_root.program_directory(node.description)
        for program in ("nvidia-imex", "nvidia-imex-ctl"):
            assert (programs / program).exists() is there
            if there:
                assert stat.S_IMODE((programs / program).stat().st_mode) == 0o755


def test_without_the_driver_it_does_not_start(local_tray: MakeTray) -> None:
    tray = local_tray()
    tray.configure([HERE])
    incidents.unload_driver(tray.state)
    assert tray.start().wait(timeout=20) == 1
    assert "the NVIDIA driver is not loaded" in tray.log()


def test_outside_any_driver_root_there_is_no_driver(local_tray: MakeTray) -> None:
    tray = local_tray()
    tray.configure([HERE])
    alone = copy(tray.program("nvidia-imex"), tray.directory / "nvidia-imex")
    done = tray.run(alone, "-c", tray.config)
    assert done.returncode == 1
    assert "the NVIDIA driver is not loaded" in done.stderr


def test_the_capability_can_be_required(local_tray: MakeTray) -> None:
    tray = local_tray()
    tray.configure([HERE])
    assert tray.start("--require-cap").wait(timeout=20) == 1
    assert "the device node of the capability fabric-imex-mgmt is missing" in tray.log()


def test_the_node_file_can_require_the_capability(local_tray: MakeTray) -> None:
    tray = local_tray(node={"imex": {"needs_capability": True}})
    tray.configure([HERE])
    assert tray.start().wait(timeout=20) == 1
    assert "the device node of the capability fabric-imex-mgmt is missing" in tray.log()


def test_a_host_has_one_instance_and_its_place_is_free_when_that_is_killed(
    local_tray: MakeTray,
) -> None:
    first, other = ready(local_tray("first")), ready(local_tray("other"))
    second = first.run(first.program("nvidia-imex"), "-c", other.config)
    assert second.returncode == 1
    assert "another IMEX instance runs on this host" in second.stderr
    assert (first.status(), other.status()) == ("READY", "READY")
    assert first.kill(signal.SIGKILL) == -9
    first.start()
    first.wait_status("READY")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGQUIT"])
def test_a_signal_to_stop_ends_it_in_order(local_tray: MakeTray, name: str) -> None:
    tray = ready(local_tray())
    assert tray.kill(signal.Signals[name]) == 0
    assert "state SHUTTING_DOWN" in tray.log()


# Faults


def test_a_crash_ends_the_running_daemon_and_not_the_next(local_tray: MakeTray) -> None:
    tray = ready(local_tray())
    imex_incidents.crash(tray.state)
    assert tray.daemon is not None
    assert tray.daemon.wait(timeout=20) == -signal.SIGKILL
    tray.start()
    tray.wait_status("READY")


def test_a_daemon_can_crash_some_time_after_each_start(local_tray: MakeTray) -> None:
    tray = local_tray()
    tray.configure([HERE])
    imex_incidents.disturb(tray.state, crash_after_ms=50)
    for _ in range(2):
        assert tray.start().wait(timeout=20) == -signal.SIGKILL
    imex_incidents.disturb(tray.state, crash_after_ms=0)
    tray.start()
    tray.wait_status("READY")


def test_a_daemon_that_hangs_answers_when_it_hangs_no_more(local_tray: MakeTray) -> None:
    tray = ready(local_tray())
    imex_incidents.disturb(tray.state, hang=True)
    tray.wait_log("a fault lets this daemon hang")
    address = (HERE, int(tray.defaults["IMEX_CMD_PORT"]))
    with socket.create_connection(address, timeout=0.3) as client:
        client.sendall(b"QUERY\n")
        with pytest.raises(TimeoutError):
            client.recv(100)
        imex_incidents.clear(tray.state)
        client.settimeout(20)
        assert client.recv(100) == b"READY\n"


def test_a_version_that_does_not_fit_is_refused(local_tray: MakeTray) -> None:
    tray = local_tray()
    with pytest.raises(StateError, match="must be shorter than 32 bytes"):
        imex_incidents.disturb(tray.state, version="1" * 32)
    with pytest.raises(StateError, match="from 0 to 255"):
        imex_incidents.disturb(tray.state, refused=[256])
    with pytest.raises(StateError, match="must be one of: INITIALIZING, "):
        imex_incidents.disturb(tray.state, status="WAITING_FOR_QUORUM")


# nvdra-simctl


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, object]]:
    """Runs `nvdra-simctl imex` with --json; its answer."""

    def run(tray: Tray, *arguments: str) -> dict[str, object]:
        assert main.main(["imex", *arguments, "--json", "--state", str(tray.node.state)]) == 0
        told: dict[str, object] = json.loads(capsys.readouterr().out)
        return told

    return run


NOTHING: dict[str, object] = {
    "slow_start_ms": 0,
    "crash_after_ms": 0,
    "never_ready": False,
    "status": None,
    "hang": False,
    "nodes_hang": False,
    "dns_stale": False,
    "version": None,
    "refused": None,
}


def test_every_fault_is_set_shown_and_cleared_by_command(
    local_tray: MakeTray, answer: Callable[..., dict[str, object]]
) -> None:
    tray = local_tray()
    assert answer(tray, "show") == NOTHING
    given = ["--slow-start-ms", "5", "--crash-after-ms", "7", "--never-ready", "--hang"]
    given += ["--nodes-hang", "--status", "SHUTTING_DOWN", "--dns-stale"]
    given += ["--claim-version", "1.2", "--refuse", "2,0"]
    every = {
        "slow_start_ms": 5,
        "crash_after_ms": 7,
        "never_ready": True,
        "status": "SHUTTING_DOWN",
        "hang": True,
        "nodes_hang": True,
        "dns_stale": True,
        "version": "1.2",
        "refused": "0,2",
    }
    assert answer(tray, "set", *given) == every
    assert answer(tray, "set", "--no-hang", "--refuse", "all") == {
        **every,
        "hang": False,
        "refused": "all",
    }
    assert answer(tray, "set", "--refuse", "none")["refused"] is None
    assert answer(tray, "clear") == NOTHING


def test_a_crash_by_command_is_not_undone_by_clearing(
    local_tray: MakeTray, answer: Callable[..., dict[str, object]]
) -> None:
    tray = ready(local_tray())
    assert answer(tray, "crash") == NOTHING
    assert answer(tray, "clear") == NOTHING
    assert tray.daemon is not None
    assert tray.daemon.wait(timeout=20) == -signal.SIGKILL


def test_the_programs_are_taken_away_and_put_back_by_command(
    local_tray: MakeTray, answer: Callable[..., dict[str, object]]
) -> None:
    tray = ready(local_tray())
    root = ["--driver-root", str(tray.node.roots.driver)]
    programs = ["usr/bin/nvidia-imex", "usr/bin/nvidia-imex-ctl"]
    kept = copy(tray.program("nvidia-imex-ctl"), tray.directory / "ctl")
    assert answer(tray, "remove", *root) == {"removed": programs}
    assert not tray.program("nvidia-imex").exists()
    assert not tray.program("nvidia-imex-ctl").exists()
    assert tray.run(kept, "-q", "-c", tray.config).stdout == "READY\n"
    assert answer(tray, "restore", *root) == {"restored": programs}
    assert tray.status() == "READY"


# The node's files


def test_a_rack_tray_has_the_node_of_the_management_capability(sim_node: MakeNode) -> None:
    real = {"render": {"nodes": "real"}}
    node = sim_node("gb200-nvl72", **real)
    found = (node.roots.dev / "nvidia-caps/nvidia-cap4323").stat()
    assert (os.major(found.st_rdev), os.minor(found.st_rdev)) == (505, 4323)
    assert stat.S_IMODE(found.st_mode) == 0o400
    lone = sim_node("dgx-h100", name="lone", **real)
    assert not (lone.roots.dev / "nvidia-caps/nvidia-cap4323").exists()


def test_as_many_channels_have_nodes_as_the_node_file_says(sim_node: MakeNode) -> None:
    node = sim_node("gb200-nvl72", node={"imex": {"channel_count": 8, "channel_nodes": 3}})
    rows = json.loads((node.roots.dev / "devices.json").read_text())
    channels = {path: row["minor"] for path, row in rows.items() if "imex-channels" in path}
    assert channels == {
        f"/dev/nvidia-caps-imex-channels/channel{number}": number for number in range(3)
    }
    assert {rows[path]["major"] for path in channels} == {506}
    parameters = (node.roots.proc / "driver/nvidia/params").read_text()
    assert "ImexChannelCount: 8\n" in parameters


def test_more_channel_nodes_than_channels_are_refused() -> None:
    imex = {"channel_count": 2, "channel_nodes": 3}
    with pytest.raises(
        ConfigError, match=r"node\.imex\.channel_nodes: 3 device nodes for 2 channels"
    ):
        node_config.from_profile("gb200-nvl72", "n", {"node": {"imex": imex}})
