# SPDX-License-Identifier: Apache-2.0
"""nvidia-imex-ctl as scripts and people use it, with one daemon (§16.2)."""

import errno
import json
import signal
import socket
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nvdra_sim import imex_incidents
from nvdra_sim.state_file import layout
from nvdra_sim.testing.imex_fixtures import CONFIG, MakeTray, Tray

HERE = "127.0.0.1"
WORDS = [b"QUERY\n", b"ROW\n", b"PING\n", b"HELLO 1 0 0 0 1 ", b"0 0 ", b"580.95.05\n", b"\n"]


@pytest.fixture
def tray(local_tray: MakeTray) -> Tray:
    """A tray whose daemon is ready, the only one of its list."""
    made = local_tray()
    made.configure([HERE])
    made.start()
    made.wait_status("READY")
    return made


def test_a_ready_daemon_is_one_word_and_nothing_else(tray: Tray) -> None:
    done = tray.ctl("-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "READY\n", "")


def test_the_word_in_json(tray: Tray) -> None:
    assert json.loads(tray.ctl("-q", "-j").stdout) == {"status": "READY"}


def test_the_order_of_options_does_not_matter(tray: Tray) -> None:
    done = tray.run(tray.program("nvidia-imex-ctl"), "-j", "-q", "-c", tray.config)
    assert json.loads(done.stdout) == {"status": "READY"}


def test_a_domain_of_one_node_is_up(tray: Tray) -> None:
    domain = tray.domain()
    assert domain["status"] == "UP"
    assert domain["nodes"] == {
        "0": {
            "status": "READY",
            "host": HERE,
            "connections": {"0": {"host": HERE, "status": "CONNECTED", "changed": True}},
            "changed": True,
            "version": "580.95.05",
            "hostName": socket.gethostname(),
        }
    }
    assert domain["timestamp"]


def test_the_table_has_a_legend_the_nodes_their_connections_and_the_domain(
    local_tray: MakeTray,
) -> None:
    tray = local_tray()
    tray.configure([HERE, "203.0.113.9"])
    tray.start()
    tray.wait_status("READY")
    done = tray.ctl("-N")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    legend = [line.split(" - ")[0] for line in lines[1:9]]
    assert legend == ["I", "N", "R", "D", "A", "!V!", "!M!", "C"]
    words = [line.split() for line in lines]
    assert ["Node", "#0", "*", HERE, "*", "-", "READY", "-", "Version:", "580.95.05"] in words
    assert ["Node", "#1", "-", "203.0.113.9", "-", "UNAVAILABLE"] in words
    assert words[-4:] == [
        ["Nodes", "From\\To", "0", "1"],
        ["0", "C", "N"],
        ["1", "I", "I"],
        ["Domain", "State:", "DEGRADED"],
    ]


def test_host_names_are_shown_on_request(tray: Tray) -> None:
    shown = tray.ctl("-H").stdout
    assert f"Hostname: {socket.gethostname()}" in shown
    assert "Hostname" not in tray.ctl("-N").stdout
    assert tray.ctl("-N", "-H").stdout.splitlines()[-1] == "Domain State: UP"


# Where the daemon is asked


def test_a_unix_socket_of_the_configuration_is_used_instead_of_the_port(
    local_tray: MakeTray,
) -> None:
    tray = local_tray()
    path = tray.directory / "ctl.sock"
    tray.configure([HERE], IMEX_CMD_UNIX_DOMAIN_PATH=str(path))
    tray.start()
    tray.wait_status("READY")
    assert path.is_socket()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HERE, int(tray.defaults["IMEX_CMD_PORT"])), timeout=5)
    assert tray.kill(signal.SIGTERM) == 0
    assert not path.exists()


def test_a_socket_can_be_given_without_a_configuration(local_tray: MakeTray) -> None:
    tray = local_tray()
    path = tray.directory / "ctl.sock"
    tray.configure([HERE], IMEX_CMD_UNIX_DOMAIN_PATH=str(path))
    tray.start()
    tray.wait_status("READY")
    done = tray.run(tray.program("nvidia-imex-ctl"), "-q", f"--u={path}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "READY\n", "")


def test_the_socket_that_a_killed_daemon_left_is_replaced(local_tray: MakeTray) -> None:
    tray = local_tray()
    path = tray.directory / "ctl.sock"
    tray.configure([HERE], IMEX_CMD_UNIX_DOMAIN_PATH=str(path))
    tray.start()
    tray.wait_status("READY")
    assert tray.kill(signal.SIGKILL) == -9
    assert path.is_socket()
    assert tray.status() == ""
    tray.start()
    tray.wait_status("READY")


def test_a_socket_that_somebody_else_listens_on_is_left_alone(local_tray: MakeTray) -> None:
    tray = local_tray()
    path = tray.directory / "ctl.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        tray.configure([HERE], IMEX_CMD_UNIX_DOMAIN_PATH=str(path))
        assert tray.start().wait(timeout=20) == 1
    assert "cannot open the command service: Address already in use" in tray.log()
    assert path.is_socket()


def test_a_daemon_of_the_host_can_be_asked_from_inside_its_driver_root(
    local_tray: MakeTray,
) -> None:
    tray = local_tray()
    directory = tray.node.roots.driver / "etc/nvidia-imex"
    directory.mkdir()
    with TemporaryDirectory() as short:  # the name of a socket has room for 107 characters
        (Path(short) / "imex").symlink_to(directory)
        path = Path(short) / "imex/imex_ctrl.sock"
        tray.configure([HERE], IMEX_CMD_UNIX_DOMAIN_PATH=str(path))
        tray.start()
        tray.wait_status("READY")
        command = ["nvidia-imex-ctl", "-q", "--u=/etc/nvidia-imex/imex_ctrl.sock"]
        done = tray.run("chroot", tray.node.roots.driver, *command)
        assert (done.returncode, done.stdout, done.stderr) == (0, "READY\n", "")
        assert tray.kill(signal.SIGTERM) == 0
    directory.rmdir()


# Without an answer


def test_without_a_daemon_it_fails_and_says_nothing_on_standard_output(
    local_tray: MakeTray,
) -> None:
    tray = local_tray()
    tray.configure([HERE])
    done = tray.ctl("-q")
    assert (done.returncode, done.stdout) == (255, "")
    assert done.stderr == "nvidia-imex-ctl: no IMEX daemon answers\n"


def test_it_may_have_a_word_for_a_missing_daemon(local_tray: MakeTray) -> None:
    """It is not known whether the real program says UNAVAILABLE or fails."""
    tray = local_tray(node={"imex": {"ctl_says_unavailable": True}})
    tray.configure([HERE])
    done = tray.ctl("-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "UNAVAILABLE\n", "")


def test_without_a_daemon_every_node_of_the_list_is_unavailable(local_tray: MakeTray) -> None:
    tray = local_tray()
    tray.configure([HERE, "localhost"])
    domain = tray.domain()
    assert domain["status"] == "DOWN"
    for node in domain["nodes"].values():
        assert (node["status"], node["version"], node["changed"]) == ("UNAVAILABLE", "", False)
        assert [one["status"] for one in node["connections"].values()] == ["INVALID"] * 2


def test_without_a_node_list_the_domain_cannot_be_shown(tray: Tray) -> None:
    (tray.directory / "nodes.cfg").unlink()
    done = tray.ctl("-N", "-j")
    assert (done.returncode, done.stdout) == (255, "")
    assert "nodes.cfg" in done.stderr


@pytest.mark.parametrize("arguments", [["-c", "/nowhere/imexd.cfg"], ["--u=/nowhere/ctl.sock"]])
def test_what_is_not_there_is_no_daemon(local_tray: MakeTray, arguments: list[str]) -> None:
    tray = local_tray()
    done = tray.run(tray.program("nvidia-imex-ctl"), "-q", *arguments)
    assert (done.returncode, done.stdout) == (255, "")
    assert done.stderr.startswith("nvidia-imex-ctl: ")


def test_a_daemon_without_command_service_cannot_be_asked(local_tray: MakeTray) -> None:
    tray = local_tray()
    tray.configure([HERE], IMEX_CMD_ENABLED="0")
    done = tray.ctl("-q")
    assert (done.returncode, done.stdout) == (255, "")
    assert done.stderr.endswith("does not enable the command service\n")


@pytest.mark.parametrize(
    "arguments", [[], ["-j"], ["-q", "-N"], ["-x"], ["-q", "-c"], ["-q", "--u="]]
)
def test_a_wrong_command_line_exits_with_2_and_shows_the_right_one(
    local_tray: MakeTray, arguments: list[str]
) -> None:
    tray = local_tray()
    done = tray.run(tray.program("nvidia-imex-ctl"), *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "<-q|-N>" in done.stderr


@pytest.mark.parametrize(("option", "word"), [("-h", "--u=SOCKET"), ("-v", "simulated driver")])
def test_help_and_version_need_no_daemon(local_tray: MakeTray, option: str, word: str) -> None:
    tray = local_tray()
    done = tray.run(tray.program("nvidia-imex-ctl"), option)
    assert done.returncode == 0
    assert word in done.stdout


# Other words than READY


@pytest.mark.parametrize("word", layout.IMEX_STATUSES)
def test_every_word_can_be_said(tray: Tray, word: str) -> None:
    imex_incidents.disturb(tray.state, status=word)
    tray.wait_status(word)
    assert tray.ctl("-q").returncode == 0
    assert tray.domain()["nodes"]["0"]["status"] == word


def test_a_daemon_that_never_gets_ready_says_what_it_does(tray: Tray) -> None:
    imex_incidents.disturb(tray.state, never_ready=True)
    tray.wait_status("INIT_GPU")
    assert tray.ctl("-q").returncode == 0
    assert tray.domain()["nodes"]["0"]["status"] == "INIT_GPU"
    imex_incidents.clear(tray.state)
    tray.wait_status("READY")


def test_a_slow_start_is_initializing_until_it_is_over(local_tray: MakeTray) -> None:
    tray = local_tray()
    tray.configure([HERE])
    imex_incidents.disturb(tray.state, slow_start_ms=3_600_000)
    tray.start()
    tray.wait_status("INITIALIZING")
    assert tray.domain()["status"] == "DOWN"
    imex_incidents.disturb(tray.state, slow_start_ms=0)
    tray.wait_status("READY")


def test_a_client_that_talks_nonsense_is_hung_up_on_and_harms_nobody(tray: Tray) -> None:
    port = int(tray.defaults["IMEX_CMD_PORT"])
    for nonsense in (b"WHAT\n", b"\n", b"x" * 5000, b"\0\0\n", b"QUERY", b""):
        with socket.create_connection((HERE, port), timeout=10) as client:
            assert hangs_up(client, nonsense)
    assert tray.status() == "READY"


def hangs_up(other: socket.socket, words: bytes) -> bool:
    """The other side closes without an answer, perhaps before it has read everything."""
    try:
        other.sendall(words)
        other.shutdown(socket.SHUT_WR)
        return other.recv(100) == b""
    except OSError as error:
        return error.errno in (errno.ECONNRESET, errno.ENOTCONN, errno.EPIPE)


def test_a_stranger_on_the_port_of_the_nodes_is_hung_up_on_and_harms_nobody(tray: Tray) -> None:
    port = int(tray.defaults["SERVER_PORT"])
    strangers = (b"HELLO\n", b"HELLO 1 0 -1 0 1 0 0 x\n", b"HELLO 1 0 256 0 1 0 0 x\n", b"\n")
    for words in strangers:
        with socket.create_connection((HERE, port), timeout=10) as stranger:
            assert hangs_up(stranger, words)
    with socket.create_connection((HERE, port), timeout=10) as stranger:
        stranger.sendall(b"HELLO 1 0 0 0 1 0 0 1.2.3\n")
        assert stranger.recv(100).startswith(b"REFUSED VERSION ")
    assert tray.status() == "READY"


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    port=st.sampled_from(["IMEX_CMD_PORT", "SERVER_PORT"]),
    words=st.lists(st.sampled_from(WORDS) | st.binary(max_size=1500), max_size=6).map(b"".join),
)
def test_whatever_is_sent_to_it_the_daemon_lives(tray: Tray, port: str, words: bytes) -> None:
    with socket.create_connection((HERE, int(tray.defaults[port])), timeout=10) as other:
        hangs_up(other, words)
    assert tray.status() == "READY"


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.lists(
        st.sampled_from([line.encode() for line in CONFIG.splitlines()])
        | st.sampled_from([b"\n", b"=", b"\0", b"#", b" ", b"\r\n"])
        | st.binary(max_size=300)
    ).map(b"".join)
)
def test_whatever_is_in_a_configuration_it_is_read_or_refused(tray: Tray, text: bytes) -> None:
    file = tray.directory / "any.cfg"
    file.write_bytes(text + b"\nIMEX_CMD_ENABLED=0\n")
    done = tray.run(tray.program("nvidia-imex-ctl"), "-q", "-c", file)
    assert (done.returncode, done.stdout) == (255, "")


def test_programs_run_under_chroot_without_any_library(tray: Tray, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    for name in ("nvidia-imex", "nvidia-imex-ctl"):
        (root / "bin" / name).write_bytes(tray.program(name).read_bytes())
        (root / "bin" / name).chmod(0o755)
        done = tray.run("chroot", root, f"/bin/{name}", "-h")
        assert (done.returncode, done.stderr) == (0, "")
