"""What of its host nvidia-imex depends on, and what can be done to it there (§16.1)."""

import json
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from shutil import copy

import pytest
from nvdra_sim import cli, config, driverroot, imex_incidents, incidents
from nvdra_sim.errors import ConfigError
from nvdra_sim.fixtures import MakeNode
from nvdra_sim.imex_fixtures import MakeTray, Tray, until

HERE = "127.0.0.1"


def ready(tray: Tray) -> Tray:
    tray.configure([HERE])
    tray.start()
    tray.becomes("READY")
    return tray


def test_both_programs_are_installed_unless_the_node_file_says_otherwise(
    sim_node: MakeNode,
) -> None:
    for name, imex, there in (("with", {}, True), ("without", {"installed": False}, False)):
        node = sim_node("gb200-nvl72", name=name, node={"imex": imex})
        programs = node.roots.driver / driverroot.program_directory(node.description)
        for program in ("nvidia-imex", "nvidia-imex-ctl"):
            assert (programs / program).exists() is there
            if there:
                assert stat.S_IMODE((programs / program).stat().st_mode) == 0o755


def test_without_the_driver_it_does_not_start(lone_tray: MakeTray) -> None:
    tray = lone_tray()
    tray.configure([HERE])
    incidents.unload_driver(tray.state)
    assert tray.start().wait(timeout=20) == 1
    assert "the NVIDIA driver is not loaded" in tray.log()


def test_outside_any_driver_root_there_is_no_driver(lone_tray: MakeTray) -> None:
    tray = lone_tray()
    tray.configure([HERE])
    alone = copy(tray.program("nvidia-imex"), tray.directory / "nvidia-imex")
    done = tray.run(alone, "-c", tray.config)
    assert done.returncode == 1
    assert "the NVIDIA driver is not loaded" in done.stderr


def test_the_capability_can_be_required(lone_tray: MakeTray) -> None:
    tray = lone_tray()
    tray.configure([HERE])
    assert tray.start("--require-cap").wait(timeout=20) == 1
    assert "the device node of the capability fabric-imex-mgmt is missing" in tray.log()


def test_the_node_file_can_require_the_capability(lone_tray: MakeTray) -> None:
    tray = lone_tray(node={"imex": {"needs_capability": True}})
    tray.configure([HERE])
    assert tray.start().wait(timeout=20) == 1
    assert "the device node of the capability fabric-imex-mgmt is missing" in tray.log()


def test_a_host_has_one_instance_and_its_place_is_free_when_that_is_killed(
    lone_tray: MakeTray,
) -> None:
    first, other = ready(lone_tray("first")), ready(lone_tray("other"))
    second = first.run(first.program("nvidia-imex"), "-c", other.config)
    assert second.returncode == 1
    assert "another IMEX instance runs on this host" in second.stderr
    assert (first.word(), other.word()) == ("READY", "READY")
    assert first.kill(signal.SIGKILL) == -9
    first.start()
    first.becomes("READY")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGQUIT"])
def test_a_signal_to_stop_ends_it_in_order(lone_tray: MakeTray, name: str) -> None:
    tray = ready(lone_tray())
    assert tray.kill(signal.Signals[name]) == 0
    assert "state SHUTTING_DOWN" in tray.log()


# Faults


def test_a_crash_ends_the_running_daemon_and_not_the_next(lone_tray: MakeTray) -> None:
    tray = ready(lone_tray())
    imex_incidents.crash(tray.state)
    assert tray.daemon is not None
    assert tray.daemon.wait(timeout=20) == -signal.SIGKILL
    tray.start()
    tray.becomes("READY")


def test_a_daemon_can_crash_some_time_after_each_start(lone_tray: MakeTray) -> None:
    tray = lone_tray()
    tray.configure([HERE])
    imex_incidents.disturb(tray.state, crash_after_ms=50)
    for _ in range(2):
        assert tray.start().wait(timeout=20) == -signal.SIGKILL
    imex_incidents.disturb(tray.state, crash_after_ms=0)
    tray.start()
    tray.becomes("READY")


def test_a_daemon_that_hangs_answers_when_it_hangs_no_more(lone_tray: MakeTray) -> None:
    tray = ready(lone_tray())
    imex_incidents.disturb(tray.state, hang=True)
    assert tray.daemon is not None
    stat_file = Path(f"/proc/{tray.daemon.pid}/wchan")
    until(lambda: "nanosleep" in stat_file.read_text(), lambda: "the daemon hangs")
    tray.daemon.send_signal(signal.SIGTERM)
    imex_incidents.calm(tray.state)
    assert tray.daemon.wait(timeout=20) == 0


def test_a_version_that_does_not_fit_is_refused(lone_tray: MakeTray) -> None:
    tray = lone_tray()
    with pytest.raises(imex_incidents.StateError, match="less than 32 bytes"):
        imex_incidents.disturb(tray.state, version="1" * 32)
    with pytest.raises(imex_incidents.StateError, match="from 0 to 255"):
        imex_incidents.disturb(tray.state, refused=[256])


# nvdra-simctl


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, object]]:
    """Runs `nvdra-simctl imex` with --json; its answer."""

    def run(tray: Tray, *arguments: str) -> dict[str, object]:
        assert cli.main(["imex", *arguments, "--json", "--state", str(tray.node.state)]) == 0
        told: dict[str, object] = json.loads(capsys.readouterr().out)
        return told

    return run


NOTHING: dict[str, object] = {
    "slow_start_ms": 0,
    "crash_after_ms": 0,
    "never_ready": False,
    "hang": False,
    "dns_stale": False,
    "version": None,
    "refused": None,
}


def test_every_fault_is_set_shown_and_cleared_by_command(
    lone_tray: MakeTray, answer: Callable[..., dict[str, object]]
) -> None:
    tray = lone_tray()
    assert answer(tray, "show") == NOTHING
    given = ["--slow-start-ms", "5", "--crash-after-ms", "7", "--never-ready", "--hang"]
    given += ["--dns-stale", "--claim-version", "1.2", "--refuse", "2,0"]
    every = {
        "slow_start_ms": 5,
        "crash_after_ms": 7,
        "never_ready": True,
        "hang": True,
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
    lone_tray: MakeTray, answer: Callable[..., dict[str, object]]
) -> None:
    tray = ready(lone_tray())
    assert answer(tray, "crash") == NOTHING
    assert answer(tray, "clear") == NOTHING
    assert tray.daemon is not None
    assert tray.daemon.wait(timeout=20) == -signal.SIGKILL


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
    with pytest.raises(ConfigError, match=r"node\.imex\.channel_nodes: 3 of 2 channels"):
        config.from_profile("gb200-nvl72", "n", {"node": {"imex": imex}})
