# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own MPS control daemon, which runs without a GPU, in the place of the simulated one.

What the command `mps-daemon` needs of it, what the simulator says of it, and what an
attacker can do to it who reaches its pipe directory.
"""

import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from nvdra_gpu_plugin.cdi import mps_edits
from nvdra_gpu_plugin.devices import mps_layout
from nvdra_gpu_plugin.mps import mounts, multi_user
from nvdra_gpu_plugin.mps.daemon_files import DaemonDirectory
from nvdra_sim.testing.node_fixtures import installed
from nvdra_testing.hardware.nvidia_programs import MPS_PACKAGE, SUITES, DebianArchive

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.geteuid() != 0, reason="a tmpfs is mounted"),
]

CONTROL = "usr/bin/nvidia-cuda-mps-control"
RUN = "run-1"
PID_FILE = "nvidia-cuda-mps-control.pid"
WITHOUT_PID_FILE = ("535",)
"""Branches of the driver whose daemon writes none."""
OTHER_USER = 1000
TIMEOUT_S = 30.0
ATTACKED_STARTS = 3


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """The driver roots, by the branch of the driver; `simulator` is the simulator's."""
    archive = DebianArchive(tmp_path_factory.mktemp("apt"))
    found = {branch: archive.unpack(MPS_PACKAGE, suite) for branch, suite in SUITES.items()}
    with installed("dgx-h100", tmp_path_factory.mktemp("node")) as node:
        yield found | {"simulator": node.roots.driver}


@pytest.fixture(params=["535", "550", "simulator"])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Program:
    """The control program with directories of its own, as an administrator starts it."""

    def __init__(self, root: Path, directory: Path) -> None:
        self.program = root / CONTROL
        self.pipe, self.log = directory / "pipe", directory / "log"

    def run(self, *arguments: str, text: str = "", user: int | None = None) -> tuple[int, str]:
        """Run it to its end. Returns its status, and what it says."""
        done = subprocess.run(
            [self.program, *arguments],
            env=self.environment,
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            user=user,
        )
        return done.returncode, done.stdout

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.defpath,
            "CUDA_VISIBLE_DEVICES": "0",
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log),
        }

    @contextmanager
    def in_foreground(self, output: Path) -> Iterator[subprocess.Popen[bytes]]:
        with output.open("w") as file:
            process = subprocess.Popen([self.program, "-f"], env=self.environment, stdout=file)
        try:
            wait_until(lambda: self.run(text="get_server_list\n")[0] == 0)
            yield process
        finally:
            process.kill()
            process.wait(TIMEOUT_S)

    def modes(self) -> dict[str, str]:
        return {each.name: stat.filemode(each.stat().st_mode) for each in self.pipe.iterdir()}


class Daemon:
    """The command `mps-daemon` with a program of the driver."""

    def __init__(self, root: Path, directory: Path) -> None:
        self.root, self.place = root, directory
        self.files = DaemonDirectory(directory / "d")
        self.pipe = self.files.path / mps_layout.PIPE
        self.output = directory / "output"
        self.program = Program(root, self.files.path)

    def start(self) -> subprocess.Popen[bytes]:
        argv = [
            *(sys.executable, "-m", "nvdra_gpu_plugin", "mps-daemon"),
            f"--driver-root={self.root}",
            f"--directory={self.files.path}",
            f"--pipe-directory={self.pipe}",
            f"--log-directory={self.files.path / mps_layout.LOG}",
            f"--ready-file={self.place / 'ready'}",
            f"--run={RUN}",
            "--thread-percentage=50",
            "--memory-limit=0=1536M",
        ]
        with self.output.open("ab") as output:
            return subprocess.Popen(
                argv, env={"PATH": os.defpath, "CUDA_VISIBLE_DEVICES": "0"}, stderr=output
            )

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        process = self.start()
        try:
            wait_until(lambda: self.files.is_ready(RUN) or process.poll() is not None)
            assert process.poll() is None, self.output.read_text()
            yield process
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


@pytest.fixture
def daemon(roots: dict[str, Path], driver: str) -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="mps-") as directory:
        Path(directory).chmod(0o755)  # other users are clients
        found = Daemon(roots[driver], Path(directory))
        found.files.allow(RUN, "{}", 65536)
        yield found
        found.files.unmount()


@pytest.fixture
def client_pipe(daemon: Daemon) -> Iterator[Path]:
    """The pipe directory as a container of the claim has it."""
    found = daemon.place / "client"
    found.mkdir()
    options = ",".join(each for each in mps_edits.PIPE_OPTIONS if each != "bind")
    subprocess.run(["mount", "--bind", daemon.pipe, found], check=True)
    subprocess.run(["mount", "-o", f"remount,bind,{options}", found], check=True)
    yield found
    subprocess.run(["umount", "--lazy", found], check=True)


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < end, "what was waited for did not happen"
        time.sleep(0.02)  # noqa: TID251 - other processes are waited for


def without_times(text: str, place: Path) -> list[str]:
    return [line.partition("] ")[2].replace(str(place), "") for line in text.splitlines()]


@pytest.mark.parametrize("branch", SUITES)
def test_a_driver_that_cannot_serve_several_users_is_found(
    roots: dict[str, Path], branch: str
) -> None:
    assert multi_user.option((str(roots[branch] / CONTROL),), {"PATH": os.defpath}) == ""


@pytest.mark.parametrize("branch", SUITES)
def test_the_simulator_makes_the_files_of_nvidias_daemon_with_their_modes(
    roots: dict[str, Path], branch: str, tmp_path: Path
) -> None:
    seen = []
    for name in (branch, "simulator"):
        place = tmp_path / name
        place.mkdir()
        program = Program(roots[name], place)
        found: list[object] = [program.run(), program.run("-x"), place.exists()]
        with program.in_foreground(place / "output") as process:
            modes = program.modes()
            if name == "simulator" and branch in WITHOUT_PID_FILE:
                del modes[PID_FILE]
            found += [modes, sorted(program.log.iterdir())]
            found += [stat.filemode(each.stat().st_mode) for each in (program.pipe, program.log)]
            found += [program.run("-f"), program.run("-d")]
            found += [
                program.run(text=f"{command}\n")
                for command in (
                    "get_default_active_thread_percentage",
                    "set_default_active_thread_percentage 50",
                    "get_default_active_thread_percentage",
                )
            ]
            program.run(text="quit\n")
            found += [process.wait(TIMEOUT_S), sorted(program.modes())]
        found.append(without_times((place / "output").read_text(), place)[:2])
        with program.in_foreground(place / "again") as process:
            process.terminate()
            left = sorted(program.modes().keys() - {PID_FILE})
            found += [process.wait(TIMEOUT_S), left]
        found.append(program.run("-d"))
        found.append(sorted(each.name for each in program.log.iterdir()))
        program.run(text="quit\n")
        seen.append([str(each).replace(str(place), "") for each in found])
    assert seen[0] == seen[1]


def test_the_daemon_has_its_settings_and_clients_reach_it_over_a_read_only_mount(
    daemon: Daemon, client_pipe: Path
) -> None:
    with daemon.running():
        client = Program(daemon.root, daemon.place)
        client.pipe = client_pipe
        assert client.run(text="get_default_active_thread_percentage\n") == (0, "50.0\n")
        with (client_pipe / "log").open("wb", buffering=0):
            pass  # CUDA's clients open the FIFO to write in it
        for change in (
            lambda: (client_pipe / "x").mkdir(),
            lambda: (client_pipe / "x").symlink_to("/etc/passwd"),
            lambda: (client_pipe / "x").touch(),
            lambda: (client_pipe / "control").unlink(),
            lambda: (client_pipe / "control_lock").open("w"),
        ):
            with pytest.raises(OSError, match="Read-only"):
                change()
    assert "Starting control daemon using socket" in daemon.output.read_text()


def test_another_user_reaches_the_socket_of_clients_over_a_read_only_mount(
    daemon: Daemon, client_pipe: Path
) -> None:
    connect = (
        "import socket\nwith socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:\n"
        f"    client.connect({str(client_pipe / 'control')!r})"
    )
    with daemon.running():
        command = ["/usr/bin/python3", "-c", connect]
        subprocess.run(command, user=OTHER_USER, check=True, timeout=TIMEOUT_S)


def test_links_that_come_before_the_program_starts_lead_it_to_no_file_of_the_node(
    daemon: Daemon,
) -> None:
    """A process that can write in the directory, as a client of earlier versions could."""
    if not mounts.restrict_pipe(daemon.pipe):
        pytest.skip("the kernel is older than 5.10")
    shadow, preload = daemon.place / "shadow", daemon.place / "ld.so.preload"
    shadow.write_bytes(b"secret")
    links = {"log": shadow, "control_lock": preload, PID_FILE: shadow}
    for _ in range(ATTACKED_STARTS):
        left = daemon.pipe / "left"
        left.touch()
        process = daemon.start()
        while left.exists() and process.poll() is None:
            pass  # what is left is removed just before the program starts
        for name, target in links.items():
            with suppress(OSError):
                (daemon.pipe / name).symlink_to(target)
        with suppress(subprocess.TimeoutExpired):
            process.wait(2)
        process.terminate()
        process.wait(TIMEOUT_S)
        assert shadow.read_bytes() == b"secret"
        assert not preload.exists()
        for each in daemon.pipe.iterdir():
            each.unlink()
