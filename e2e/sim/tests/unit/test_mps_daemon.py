# SPDX-License-Identifier: Apache-2.0
"""The control daemon of MPS: how it starts, what it is told, how it ends.

Source: docs/reference/nvml-simulator.md §17.
"""

import os
import signal
import stat
from pathlib import Path

import pytest
from nvdra_sim.description import Fault
from nvdra_sim.native import nvml_functions
from nvdra_sim.state_file import state
from nvdra_sim.testing.mps_fixtures import Mps, MpsDaemon, wait_until
from nvdra_sim.testing.node_fixtures import MakeNode, SimulatedNode

FOUND_NONE = (1, "Cannot find MPS control daemon process\n", "")
MODES = {
    "control": "srw-rw-rw-",
    "control_privileged": "srwxr-xr-x",
    "control_lock": "-rw-rw-rw-",
    "log": "prwxrwxrwx",
    "nvidia-cuda-mps-control.pid": "-rw-rw-rw-",
}
"""Of the driver 550; that of 535 has no pid file."""
LEFT = ["control", "control_lock", "control_privileged"]


@pytest.fixture
def node(shared_node: MakeNode) -> SimulatedNode:
    return shared_node("dgx-h100")


@pytest.fixture
def daemon(mps: Mps, node: SimulatedNode) -> MpsDaemon:
    """A daemon of GPU 1."""
    return mps.daemon(node, devices=uuid(node))


def uuid(node: SimulatedNode, index: int = 1) -> str:
    return node.description.gpus[index].uuid


# Start


def test_a_daemon_says_where_it_listens_and_leaves_its_files_there(daemon: MpsDaemon) -> None:
    assert daemon.log()[:2] == [
        f"Starting control daemon using socket {daemon.pipes}/control",
        f"To connect CUDA applications to this daemon, set env "
        f"CUDA_MPS_PIPE_DIRECTORY={daemon.pipes}",
    ]
    modes = {path.name: stat.filemode(path.stat().st_mode) for path in daemon.pipes.iterdir()}
    assert modes == MODES
    assert list(daemon.logs.iterdir()) == [], "in the foreground"
    assert stat.filemode(daemon.pipes.stat().st_mode) == "drwxrwxrwx"


def test_a_daemon_in_the_background_answers_as_soon_as_its_starter_has_ended(
    mps: Mps, node: SimulatedNode
) -> None:
    daemon = mps.directories(node)
    assert (daemon.run("-d").returncode, daemon.command("get_server_list")) == (0, [])
    assert Path(f"/proc/{daemon.pid}").exists()
    assert sorted(path.name for path in daemon.logs.iterdir()) == ["control.log", "server.log"]


@pytest.mark.parametrize("option", ["-x", "-v"])
def test_whatever_it_does_not_know_makes_the_program_the_front_end(
    mps: Mps, node: SimulatedNode, daemon: MpsDaemon, option: str
) -> None:
    done = mps.directories(node).run(option)
    assert (done.returncode, done.stdout, done.stderr) == FOUND_NONE
    assert daemon.run(option, text="get_default_active_thread_percentage\n").stdout == "100.0\n"
    assert daemon.run("--help").returncode == 0


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("535.261.03", ()),
        ("550.163.01", ()),
        ("555.58.02", ("-multiuser-server",)),
        ("580.95.05", ("-M", "-multiuser-server")),
    ],
)
def test_which_names_of_the_option_for_several_users_it_knows_depends_on_the_driver(
    mps: Mps, sim_node: MakeNode, version: str, known: tuple[str, ...]
) -> None:
    """A daemon that cannot start says so; otherwise the word is an argument it does not know."""
    daemon = mps.directories(
        sim_node("t4", driver={"version": version}), CUDA_MPS_PIPE_DIRECTORY="/proc/self/none"
    )
    alone = daemon.run("-f").stdout
    assert "Cannot access CUDA_MPS_PIPE_DIRECTORY=/proc/self/none" in alone
    names = ("-M", "-multiuser-server", "-x")
    assert tuple(each for each in names if daemon.run("-f", each).stdout == alone) == known


@pytest.mark.parametrize("option", ["-d", "-f"])
def test_a_directory_has_one_daemon(daemon: MpsDaemon, option: str) -> None:
    done = daemon.run(option)
    assert (done.returncode, done.stdout) == (1, "An instance of this daemon is already running\n")
    assert daemon.command("get_default_active_thread_percentage") == ["100.0"]


def test_two_directories_have_a_daemon_each(mps: Mps, node: SimulatedNode) -> None:
    first, second = mps.daemon(node), mps.daemon(node)
    assert first.pid != second.pid
    first.command("set_default_active_thread_percentage 10")
    assert second.command("get_default_active_thread_percentage") == ["100.0"]


@pytest.mark.parametrize("option", ["-d", "-f"])
def test_a_path_that_is_too_long_for_a_socket_has_no_daemon(
    mps: Mps, node: SimulatedNode, option: str
) -> None:
    daemon = mps.directories(node)
    daemon.environment["CUDA_MPS_PIPE_DIRECTORY"] += "x" * 108
    done = daemon.run(option)
    assert (done.returncode, done.stdout, done.stderr) == FOUND_NONE


def test_a_daemon_needs_its_pipe_directory_and_says_that_it_has_no_logs(
    mps: Mps, node: SimulatedNode
) -> None:
    daemon = mps.directories(node)
    nothing = str(daemon.logs / "in" / "nothing")
    daemon.environment["CUDA_MPS_LOG_DIRECTORY"] = nothing
    done = daemon.run("-d")
    assert done.stdout == (
        f"Warning: Failed writing log files to directory [{nothing}]. No logs will be available.\n"
    )
    assert daemon.command("get_server_list") == []
    other = mps.directories(node)
    other.environment["CUDA_MPS_PIPE_DIRECTORY"] = nothing
    done = other.run("-f")
    assert (done.returncode, done.stdout) == (
        1,
        f"Cannot access CUDA_MPS_PIPE_DIRECTORY={nothing}\n",
    )


def test_a_daemon_follows_links_in_its_pipe_directory(mps: Mps, node: SimulatedNode) -> None:
    """This is why no other user may write there."""
    daemon = mps.directories(node)
    daemon.pipes.mkdir()
    target, made = daemon.pipes.parent / "target", daemon.pipes.parent / "made"
    target.write_text("")
    (daemon.pipes / "log").symlink_to(target)
    (daemon.pipes / "control_lock").symlink_to(made)
    daemon.start()
    assert "Starting control daemon using socket" in target.read_text()
    assert stat.filemode(made.stat().st_mode) == "-rw-rw-rw-"


def test_the_environment_of_a_daemon_gives_defaults(mps: Mps, node: SimulatedNode) -> None:
    daemon = mps.daemon(
        node,
        CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="25",
        CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=3G,1=512M",
    )
    assert daemon.command(
        "get_default_active_thread_percentage",
        "get_default_device_pinned_mem_limit 0",
        "get_default_device_pinned_mem_limit 1",
    ) == ["25.0", "3G", "512M"]


# Commands


def test_without_a_daemon_there_is_nobody_to_tell(mps: Mps, node: SimulatedNode) -> None:
    daemon = mps.directories(node)
    done = daemon.run(text="get_server_list\n")
    assert (done.returncode, done.stdout, done.stderr) == FOUND_NONE


def test_percentages_are_set_and_read_back_with_one_decimal(daemon: MpsDaemon) -> None:
    assert daemon.command("set_default_active_thread_percentage 50") == ["50.0"]
    assert daemon.command("get_default_active_thread_percentage") == ["50.0"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [("2048M", "2G"), ("2560M", "2G"), ("10G", "10G"), ("953M", "953M"), ("2048K", "2M")],
)
def test_limits_are_read_back_rounded_down(daemon: MpsDaemon, value: str, shown: str) -> None:
    gpu = uuid(daemon.node)
    assert daemon.command(f"set_default_device_pinned_mem_limit {gpu} {value}") == []
    assert daemon.command(f"get_default_device_pinned_mem_limit {gpu}") == [shown]


def test_a_limit_is_known_by_the_word_that_it_was_set_with(daemon: MpsDaemon) -> None:
    daemon.command(f"set_default_device_pinned_mem_limit {uuid(daemon.node)} 2G")
    assert daemon.command("get_default_device_pinned_mem_limit 0") == ["0M"]


@pytest.mark.parametrize(
    "command",
    [
        "set_default_active_thread_percentage 0",
        "set_default_active_thread_percentage 101",
        "set_default_active_thread_percentage many",
        "set_default_active_thread_percentage",
        "set_default_device_pinned_mem_limit 0 0M",
        "set_default_device_pinned_mem_limit 0 2Gi",
        "set_default_device_pinned_mem_limit 0 -2G",
        "set_default_device_pinned_mem_limit 0 2048",
        "set_default_device_pinned_mem_limit 1 2G",
        "set_default_device_pinned_mem_limit GPU-00000000-0000-0000-0000-000000000000 2G",
        "get_server_status 1",
        "get_client_list 1",
        "shutdown_server 1",
        "start_server -uid root",
        "quit -t soon",
        "make_coffee",
    ],
)
def test_what_is_refused_is_said_on_standard_output_and_is_no_failure_of_the_program(
    daemon: MpsDaemon, command: str
) -> None:
    assert len(daemon.command(command)) == 1
    assert daemon.command(
        "get_default_active_thread_percentage", "get_default_device_pinned_mem_limit 0"
    ) == ["100.0", "0M"]


def test_the_log_has_every_command_and_its_answer(daemon: MpsDaemon) -> None:
    daemon.command("set_default_active_thread_percentage 10")
    wait_until(lambda: daemon.log()[-1] == "UI closed")
    assert daemon.log()[-5:] == [
        "Accepting connection...",
        "NEW UI",
        "Cmd:set_default_active_thread_percentage 10",
        "10.0",
        "UI closed",
    ]


# End


def test_quit_returns_when_the_daemon_has_ended(daemon: MpsDaemon) -> None:
    assert daemon.command("quit") == []
    assert daemon.wait() == 0
    assert sorted(path.name for path in daemon.pipes.iterdir()) == LEFT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_daemon_and_its_files_stay(
    daemon: MpsDaemon, number: signal.Signals
) -> None:
    assert daemon.signal(number) == -number
    assert sorted(path.name for path in daemon.pipes.iterdir()) == sorted(MODES)


def test_the_files_of_a_killed_daemon_are_taken_over(daemon: MpsDaemon) -> None:
    daemon.command("set_default_active_thread_percentage 10")
    assert daemon.signal(signal.SIGKILL) == -signal.SIGKILL
    assert (daemon.pipes / "control").exists()
    done = daemon.run(text="get_server_list\n")
    assert (done.returncode, done.stdout, done.stderr) == FOUND_NONE
    daemon.start()
    assert daemon.command("get_default_active_thread_percentage") == ["100.0"]


# Faults


def fail_once(node: SimulatedNode, function: str) -> None:
    rule = Fault(
        function=function, gpu=None, result=999, activation_status=None, times=1, after_calls=0,
        probability=1.0, delay_ms=0, do_work=False, abort=False,
    )  # fmt: skip
    state.load(node.state).add_rule(rule)


def test_a_rule_makes_the_daemon_refuse_a_command(sim_node: MakeNode, mps: Mps) -> None:
    node = sim_node("t4")
    daemon = mps.daemon(node)
    fail_once(node, "mps:set_default_*")
    set_it = "set_default_active_thread_percentage 10"
    assert daemon.command(set_it) == ["Failed to execute set_default_active_thread_percentage"]
    assert daemon.command("get_default_active_thread_percentage") == ["100.0"]
    assert daemon.command(set_it) == ["10.0"]


@pytest.mark.parametrize("option", ["-d", "-f"])
def test_a_rule_keeps_a_daemon_from_starting(sim_node: MakeNode, mps: Mps, option: str) -> None:
    node = sim_node("t4")
    daemon = mps.directories(node)
    fail_once(node, "mps:start")
    assert daemon.run(option).returncode == 1
    assert sorted(path.name for path in daemon.pipes.iterdir()) == LEFT
    assert daemon.run("-d").returncode == 0


def test_a_rule_keeps_servers_from_starting(sim_node: MakeNode, mps: Mps) -> None:
    node = sim_node("t4")
    daemon = mps.daemon(node)
    fail_once(node, "mps:server")
    assert mps.client(daemon).call("init") == [805]
    assert mps.client(daemon).call("init") == [0]


def test_rules_know_every_command(daemon: MpsDaemon) -> None:
    commands = {f"mps:{line.split()[0]}" for line in daemon.command("help")}
    assert commands | {"mps:start", "mps:server"} == set(nvml_functions.MPS_COMMANDS)


# Roots


@pytest.mark.skipif(os.getuid() != 0, reason="only root changes its root")
def test_a_daemon_runs_after_a_change_of_the_root(sim_node: MakeNode, mps: Mps) -> None:
    """As in the container of the daemon, where nothing but the driver root need be."""
    node = sim_node("dgx-h100")
    daemon = mps.directories(node)
    root = node.roots.driver
    for name in ("pipe", "log"):
        (root / name).mkdir()
    environment = {"CUDA_MPS_PIPE_DIRECTORY": "/pipe", "CUDA_MPS_LOG_DIRECTORY": "/log"}
    program = "/" + str(node.mps_control.relative_to(root))
    command = ["env", "-i", *(f"{key}={value}" for key, value in environment.items())]
    # By a short name: the path of a socket has at most 107 bytes.
    daemon.pipes = daemon.pipes.with_name("outside")
    daemon.pipes.symlink_to(root / "pipe")
    daemon.environment["CUDA_MPS_PIPE_DIRECTORY"] = str(daemon.pipes)
    done = node.run(*command, "/usr/sbin/chroot", root, program, "-d")
    assert (done.returncode, done.stdout) == (0, "")
    assert daemon.command("set_default_device_pinned_mem_limit 7 1G") == []
    assert Path(f"/proc/{daemon.pid}/root").readlink() == root
