# SPDX-License-Identifier: Apache-2.0
"""What nvidia-imex makes of its configuration and its node list, asked through the program."""

import os
import signal
from pathlib import Path

import pytest
from nvdra_sim.testing.imex_fixtures import CONFIG, MakeTray, Tray, wait_until

HERE, ELSEWHERE = "127.0.0.1", "203.0.113.9"


def fails(tray: Tray, *arguments: str) -> str:
    """Starts nvidia-imex, which ends with exit code 1; what it said."""
    assert tray.start(*arguments).wait(timeout=20) == 1
    return tray.log()


def starts(tray: Tray) -> str:
    """Starts nvidia-imex, which is ready and then stopped; what it said."""
    tray.start()
    tray.wait_status("READY")
    assert tray.kill(signal.SIGTERM) == 0
    return tray.log()


def add(tray: Tray, text: str) -> None:
    tray.config.write_text(tray.config.read_text() + text)


def test_every_key_of_the_drivers_configuration_is_known(local_tray: MakeTray) -> None:
    tray = local_tray()
    tray.configure([HERE])
    keys = {line.split("=")[0] for line in CONFIG.splitlines() if "=" in line}
    assert len(keys) == 31
    said = starts(tray)
    assert "WARNING" not in said
    assert "ERROR" not in said


def test_comments_blank_lines_and_blanks_around_words_mean_nothing(local_tray: MakeTray) -> None:
    tray = local_tray()
    tray.configure([HERE])
    add(tray, "\n   \n#LOG_LEVEL=what\n  # SERVER_PORT=x\n\tLOG_LEVEL =  4 \r\nLOG_FILE_NAME=\n")
    assert "state READY" in starts(tray)


def test_the_last_of_two_equal_keys_counts(local_tray: MakeTray) -> None:
    tray = local_tray()
    tray.configure([HERE])
    add(tray, f"LOG_FILE_NAME={tray.directory}/first\nLOG_FILE_NAME={tray.directory}/second\n")
    tray.start()
    tray.wait_status("READY")
    assert not (tray.directory / "first").exists()
    assert "state READY" in (tray.directory / "second").read_text()


def test_a_key_that_nobody_knows_is_told_and_ignored(local_tray: MakeTray) -> None:
    tray = local_tray()
    tray.configure([HERE])
    add(tray, "IMEX_COLOUR=green\n")
    line = len(tray.config.read_text().splitlines())
    said = starts(tray)
    assert "[WARNING]" in said
    assert f"{tray.config}:{line}: nobody knows the key IMEX_COLOUR" in said


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("LOG_LEVEL=5", "LOG_LEVEL is 5; it must be a number from 0 to 4"),
        ("LOG_LEVEL=", "LOG_LEVEL is empty; it must be a number from 0 to 4"),
        ("SERVER_PORT=0", "SERVER_PORT is 0; it must be a number from 1 to 65535"),
        ("SERVER_PORT=50000x", "SERVER_PORT is 50000x; it must be a number from 1 to 65535"),
        ("IMEX_CMD_PORT=65536", "IMEX_CMD_PORT is 65536; it must be a number from 1 to 65535"),
        ("DAEMONIZE=yes", "DAEMONIZE is yes; it must be 0 or 1"),
        ("IMEX_CMD_ENABLED=", "IMEX_CMD_ENABLED is empty; it must be 0 or 1"),
        (
            "IMEX_WAIT_FOR_QUORUM=MOST",
            "IMEX_WAIT_FOR_QUORUM is MOST; it must be one of: NONE RECOVERY",
        ),
        (
            "IMEX_WAIT_FOR_QUORUM=RECOVER",
            "IMEX_WAIT_FOR_QUORUM is RECOVER; it must be one of: NONE RECOVERY",
        ),
        (
            "IMEX_NODE_DISCONNECTED_GRACE_TIME=-2",
            "IMEX_NODE_DISCONNECTED_GRACE_TIME is -2; it must be a number from -1 to 2147483647",
        ),
        ("LOG_LEVEL 4", '"LOG_LEVEL 4" is not KEY=VALUE'),
        (f"BIND_INTERFACE_IP={'1' * 64}", "BIND_INTERFACE_IP is longer than 63 characters"),
    ],
)
def test_a_wrong_line_is_named_with_what_would_be_right(
    local_tray: MakeTray, line: str, problem: str
) -> None:
    tray = local_tray()
    tray.configure([HERE])
    number = len(tray.config.read_text().splitlines()) + 1
    add(tray, f"{line}\n")
    assert f"{tray.config}:{number}: {problem}\n" in fails(tray)


def test_all_wrong_lines_are_named_at_once(local_tray: MakeTray) -> None:
    tray = local_tray()
    tray.configure([HERE])
    add(tray, "LOG_LEVEL=9\nnonsense\nDAEMONIZE=2\n")
    said = fails(tray)
    assert [word for word in ("LOG_LEVEL", "nonsense", "DAEMONIZE") if word in said] == [
        "LOG_LEVEL",
        "nonsense",
        "DAEMONIZE",
    ]


def test_a_missing_configuration_is_named(local_tray: MakeTray) -> None:
    tray = local_tray()
    assert f"cannot read {tray.config}: No such file" in fails(tray)


@pytest.mark.parametrize("arguments", [["--colour"], ["-c"]])
def test_a_wrong_command_line_shows_the_right_one(
    local_tray: MakeTray, arguments: list[str]
) -> None:
    done = local_tray().run(local_tray("other").program("nvidia-imex"), *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert f'"{arguments[0]}" is no option' in done.stderr
    assert "--require-cap" in done.stderr


def test_help_and_version_need_no_configuration(local_tray: MakeTray) -> None:
    tray = local_tray()
    assert "-c FILE" in tray.run(tray.program("nvidia-imex"), "--help").stdout
    version = tray.run(tray.program("nvidia-imex"), "--version")
    assert (version.returncode, version.stdout) == (0, "IMEX version is: 580.95.05\n")


# The node list


def test_the_place_in_the_list_is_the_number_of_the_node(local_tray: MakeTray) -> None:
    tray = local_tray()
    tray.configure(["# the rack", "", ELSEWHERE, "  localhost", "# the end", "198.51.100.7"])
    tray.start()
    tray.wait_status("READY")
    nodes = tray.domain()["nodes"]
    assert tray.number() == 1
    assert [node["host"] for node in nodes.values()] == [ELSEWHERE, "localhost", "198.51.100.7"]


def test_a_daemon_whose_node_is_not_in_the_list_ends(local_tray: MakeTray) -> None:
    tray = local_tray()
    tray.configure([ELSEWHERE, "198.51.100.7"])
    assert "No matching network interface found for any IP addresses" in fails(tray)


def test_names_that_do_not_resolve_are_tolerated(local_tray: MakeTray) -> None:
    tray = local_tray()
    tray.configure(["nobody.invalid", HERE, "nobody-else.invalid"])
    tray.start()
    tray.wait_status("READY")
    statuses = [node["status"] for node in tray.domain()["nodes"].values()]
    assert statuses == ["UNAVAILABLE", "READY", "UNAVAILABLE"]


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ([], "names nobody"),
        (["# nobody", ""], "names nobody"),
        (["x" * 256], ":1: the name is too long"),
        ([f"10.0.{number}.1" for number in range(257)], ":257: too many nodes"),
    ],
)
def test_a_node_list_that_is_of_no_use_is_refused(
    local_tray: MakeTray, nodes: list[str], problem: str
) -> None:
    tray = local_tray()
    tray.configure(nodes)
    assert problem in fails(tray)


def test_a_missing_node_list_is_named(local_tray: MakeTray) -> None:
    tray = local_tray()
    tray.configure([HERE], IMEX_NODE_CONFIG_FILE="/nowhere/nodes.cfg")
    assert "cannot read /nowhere/nodes.cfg: No such file" in fails(tray)


# Addresses


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"BIND_INTERFACE_IP": "a-name"}, "BIND_INTERFACE_IP is a-name, which is no address"),
        (
            {"BIND_INTERFACE_IP": "", "NETWORK_INTERFACE": "nvl9"},
            "there is no address at the network interface nvl9",
        ),
        ({"BIND_INTERFACE_IP": ELSEWHERE}, "Cannot assign requested address"),
        ({"IMEX_CMD_BIND_INTERFACE_IP": ELSEWHERE}, "cannot open the command service"),
        ({"IMEX_CMD_UNIX_DOMAIN_PATH": "/x" * 60}, "cannot open the command service"),
    ],
)
def test_an_address_that_cannot_be_had_ends_the_daemon(
    local_tray: MakeTray, settings: dict[str, str], problem: str
) -> None:
    tray = local_tray()
    tray.configure([HERE], **settings)
    assert problem in fails(tray)


def test_a_node_is_found_by_the_address_of_its_network_interface(local_tray: MakeTray) -> None:
    tray = local_tray()
    tray.configure([HERE], BIND_INTERFACE_IP="", NETWORK_INTERFACE="lo")
    tray.start()
    tray.wait_status("READY")


# The log and the background


def test_the_log_level_hides_what_is_less_important(local_tray: MakeTray) -> None:
    tray = local_tray()
    tray.configure([HERE], LOG_LEVEL="2")
    tray.start()
    tray.wait_status("READY")
    assert tray.log() == ""
    tray.kill(signal.SIGTERM)  # the end writes what was hidden
    tray.configure([ELSEWHERE], LOG_LEVEL="2")
    assert "[ERROR]" in fails(tray)


@pytest.mark.parametrize(("appends", "starts_logged"), [("0", 1), ("1", 2)])
def test_a_log_file_is_begun_anew_or_continued(
    local_tray: MakeTray, appends: str, starts_logged: int
) -> None:
    tray = local_tray()
    file = tray.directory / "imex.log"
    tray.configure([HERE], LOG_FILE_NAME=str(file), LOG_APPEND_TO_LOG=appends)
    for _ in range(2):
        assert starts(tray) == ""
    assert file.read_text().count("nvidia-imex starts with") == starts_logged


def test_a_log_file_that_cannot_be_written_ends_the_daemon(local_tray: MakeTray) -> None:
    tray = local_tray()
    tray.configure([HERE], LOG_FILE_NAME="/nowhere/imex.log")
    assert "cannot write the log /nowhere/imex.log" in fails(tray)


def test_in_the_background_the_start_ends_when_the_daemon_is_up(local_tray: MakeTray) -> None:
    tray = local_tray()
    tray.configure([HERE], DAEMONIZE="1", LOG_FILE_NAME=str(tray.directory / "log"))
    done = tray.run(tray.program("nvidia-imex"), "-c", tray.config)  # until its output is closed
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    tray.wait_status("READY")
    (pid,) = [pid for pid in processes() if str(tray.config) in command_line(pid)]
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: tray.status() == "", lambda: f"{pid} has ended")


def processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:  # it has ended meanwhile
        return []


def test_in_the_background_a_start_that_fails_says_so(local_tray: MakeTray) -> None:
    tray = local_tray()
    tray.configure([ELSEWHERE], DAEMONIZE="1")
    assert "No matching network interface found" in fails(tray)
