# SPDX-License-Identifier: Apache-2.0
"""What runs in a daemon's pod: it heeds the files that the plugin writes, whatever happens.

The control program is a script that answers as the real one does; the simulated one is used where a
plugin runs.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nvdra_gpu_plugin.devices import mps_layout
from nvdra_gpu_plugin.mps import daemon_command, mounts
from nvdra_gpu_plugin.mps.daemon_files import DaemonDirectory
from nvdra_gpu_plugin.mps.user_waits import UserWait

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a tmpfs is mounted")

PROGRAM = f'''#!{sys.executable}
"""As nvidia-cuda-mps-control: a daemon with -f, otherwise commands of the standard input."""
import os, signal, socket, sys
path = os.environ["CUDA_MPS_PIPE_DIRECTORY"] + "/control"
def say(text):
    print(text, flush=True)
known = os.environ.get("KNOWN", "-M").split()
if "-f" not in sys.argv or set(sys.argv[2:]) - set(known):
    with socket.socket(socket.AF_UNIX) as peer:
        try:
            peer.connect(path)
        except OSError:
            sys.exit("Cannot find MPS control daemon process")
        peer.sendall(sys.stdin.read().encode())
        peer.shutdown(socket.SHUT_WR)
        print(peer.makefile().read(), end="")
    sys.exit()
if os.environ.get("STUBBORN"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ.get("BROKEN"):
    say("no device")
    sys.exit(1)
if not os.path.isdir(os.path.dirname(path)):
    say(f"Cannot access CUDA_MPS_PIPE_DIRECTORY={{os.path.dirname(path)}}")
    sys.exit(1)
for name in ("log", "control_lock"):  # NVIDIA's follows links
    open(os.path.join(os.path.dirname(path), name), "a").write("opened")
settings = {{"arguments": sys.argv[1:]}}
if os.path.exists(path):
    os.unlink(path)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
gpus = os.environ["CUDA_VISIBLE_DEVICES"]
for line in os.environ.get("SAYS", "").splitlines():
    say(line)
say(f"started {{sys.argv[1:]}} {{gpus}}")
while True:
    peer, _ = listener.accept()
    command, *words = peer.makefile().read().split()
    said = ""
    if command.startswith("set_"):
        settings[command[4:] + " ".join(words[:-1])] = words[-1]
    elif command.startswith("get_default"):
        said = settings.get(command[4:] + " ".join(words), "")
        if os.environ.get("FORGETS"):
            said = "1"
        if "mem_limit" in command:
            said = os.environ.get("LIMIT", said)
    elif command == "get_server_list" and os.environ.get("EARLY"):
        said = "7\\n8\\n"
    elif command == "shutdown_server":
        say(f"ended {{words}} {{settings}}")
    elif command == "quit" and not os.environ.get("STUBBORN"):
        sys.exit()
    peer.sendall(said.encode())
    peer.close()
'''
STEP, RUN = "{}", "run-1"
SECOND_USER = """Starting new server 7 for user 1000
NEW CLIENT 8 from user 2000: Server is not ready, push client to pending list
"""
LINKED = ("log", "control_lock")
FOLLOWS_NO_LINKS = tuple(map(int, os.uname().release.split(".")[:2])) >= (5, 10)


class Pod:
    """The command as the container of a pod, and the files of its daemon."""

    def __init__(self, root: Path) -> None:
        self.driver_root = root / "driver"
        self.directory = DaemonDirectory(root / "mps" / "uid-1-abcde")
        program = self.driver_root / "usr/bin/nvidia-cuda-mps-control"
        program.parent.mkdir(parents=True)
        program.write_text(PROGRAM)
        program.chmod(0o755)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.output = root / "output"
        self.root = root

    def start(
        self, *flags: str, run: str = RUN, container: str = "container", **environ: str
    ) -> subprocess.Popen[bytes]:
        directory = self.directory.path
        argv = [
            sys.executable,
            "-m",
            "nvdra_gpu_plugin",
            "mps-daemon",
            f"--driver-root={self.driver_root}",
            f"--directory={directory}",
            f"--pipe-directory={directory / mps_layout.PIPE}",
            f"--log-directory={directory / mps_layout.LOG}",
            f"--ready-file={self.ready_file(container)}",
            f"--run={run}",
            *flags,
        ]
        env = {"PATH": os.defpath, "CUDA_VISIBLE_DEVICES": "GPU-0", **environ}
        with self.output.open("ab") as output:
            process = subprocess.Popen(argv, env=env, stderr=output)
        self.processes.append(process)
        return process

    def ready_file(self, container: str = "container") -> Path:
        """What the kubelet's probe reads in a container."""
        return self.root / container

    @property
    def log(self) -> str:
        """What the control programs have said."""
        lines = self.output.read_text().splitlines() if self.output.exists() else []
        return "\n".join(each for each in lines if each.startswith(("started", "ended")))

    def failure(self, process: subprocess.Popen[bytes]) -> str:
        """What the container of a pod that fails says last."""
        assert process.wait(30) == 1
        return self.output.read_text().splitlines()[-1]

    def end(self) -> None:
        """End everything, and leave nothing mounted."""
        for process in self.processes:
            process.terminate()
            process.wait(30)
        self.directory.unmount()

    def allow(self, run: str = RUN) -> None:
        self.directory.allow(run, STEP, 2048)

    def wait(self, is_so: Callable[[], bool], timeout_s: float = 15) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_so():
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)  # noqa: TID251 - other processes are waited for

    def wait_ready(self, run: str = RUN) -> None:
        self.wait(lambda: self.directory.is_ready(run))

    def wait_waiting(self, count: int) -> None:
        """Wait until so many have said that they wait."""
        self.wait(lambda: self.output.read_text().count("Waiting until") == count)

    def wait_ended(self) -> None:
        self.wait(lambda: not self.directory.is_locked)


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    found = Pod(tmp_path)
    yield found
    found.end()


def test_the_daemon_has_its_settings_when_it_says_that_it_is_ready(pod: Pod) -> None:
    pod.allow()
    pod.start("--multi-user", "--thread-percentage=50", "--memory-limit=0=1024M")
    pod.wait_ready()
    pod.wait(pod.ready_file().exists)
    assert "started ['-f', '-M'] GPU-0" in pod.log
    assert not pod.directory.is_ready("another run")


@pytest.mark.parametrize("known", ["-M", "-multiuser-server", "-M -multiuser-server"])
def test_the_option_for_several_users_is_one_that_the_driver_knows(pod: Pod, known: str) -> None:
    pod.allow()
    pod.start("--multi-user", KNOWN=known)
    pod.wait_ready()
    assert f"started ['-f', '{known.split()[0]}'] GPU-0" in pod.log


def test_a_driver_without_that_option_is_an_error_that_says_so(pod: Pod) -> None:
    pod.allow()
    assert "cannot serve several users" in pod.failure(pod.start("--multi-user", KNOWN="-other"))


@pytest.mark.parametrize("flags", [(), ("--multi-user",)])
def test_the_plugin_is_told_of_a_user_that_waits_for_another_one(
    pod: Pod, flags: tuple[str, ...]
) -> None:
    pod.allow()
    process = pod.start(*flags, SAYS=SECOND_USER)
    pod.wait_ready()
    if flags:
        time.sleep(11)  # noqa: TID251 - nothing is to happen
        assert pod.directory.user_wait is None
    else:
        assert pod.directory.user_wait is None, "it has not waited for long"
        pod.wait(lambda: pod.directory.user_wait == UserWait(waiting=2000, serving=1000))
    process.terminate()
    process.wait(15)
    assert pod.directory.user_wait is None


def test_servers_that_clients_started_before_the_settings_were_made_are_ended(pod: Pod) -> None:
    pod.allow()
    pod.start("--thread-percentage=50", EARLY="1")
    pod.wait_ready()
    found = {"arguments": ["-f"], "default_active_thread_percentage": "50"}
    ended = [f"ended ['{pid}', '-f'] {found}" for pid in (7, 8)]
    pod.wait(lambda: pod.log.splitlines()[1:] == ended)  # it is passed on by a thread


def test_it_does_not_start_before_it_is_allowed(pod: Pod) -> None:
    pod.allow()
    pod.directory.forbid()
    process = pod.start()
    pod.wait_waiting(1)
    pod.start(run="of an earlier attempt")
    pod.wait_waiting(2)
    assert pod.log == ""
    assert process.poll() is None, "the kubelet has nothing to start again"
    pod.allow()
    # Outside of the driver root it has the device nodes of when its container was made.
    assert process.wait(15) == 0
    pod.start()
    pod.wait_ready()


def test_a_tombstone_ends_it_and_a_restarted_container_heeds_it(pod: Pod) -> None:
    pod.allow()
    process = pod.start()
    pod.wait_ready()
    pod.directory.forbid()
    pod.wait_ended()
    assert not (pod.directory.path / mps_layout.READY).exists()
    assert not pod.ready_file().exists()
    assert process.poll() is None
    again = pod.start()
    time.sleep(1)  # noqa: TID251 - nothing is to happen
    assert again.poll() is None
    assert not pod.directory.is_locked
    assert pod.log.count("started") == 1


def test_in_a_drain_it_goes_on_until_its_clients_have_ended(pod: Pod) -> None:
    """Their pods and its own get SIGTERM at once. The plugin forbids it when they have ended."""
    pod.allow()
    process = pod.start("--grace-period=3600")
    pod.wait_ready()
    process.terminate()
    time.sleep(1)  # noqa: TID251 - nothing is to happen
    assert pod.directory.is_ready(RUN), "clients that start now find it"
    pod.directory.forbid()
    assert process.wait(15) == 0
    assert not pod.directory.is_locked


def test_it_ends_before_the_kubelet_kills_its_pod(pod: Pod) -> None:
    pod.allow()
    process = pod.start("--grace-period=22")
    pod.wait_ready()
    process.terminate()
    begin = time.monotonic()
    assert process.wait(15) == 0
    assert time.monotonic() - begin > 1.5
    assert not pod.directory.is_locked


def test_a_pod_that_is_deleted_while_its_daemon_does_not_run_ends_at_once(pod: Pod) -> None:
    pod.allow()
    pod.directory.forbid()
    process = pod.start("--grace-period=3600")
    pod.wait_waiting(1)
    process.terminate()
    assert process.wait(5) == 0


def test_a_daemon_that_does_not_want_to_end_is_killed(pod: Pod) -> None:
    pod.allow()
    pod.start(STUBBORN="1")
    pod.wait_ready()
    pod.directory.forbid()
    pod.wait_ended()


def test_the_lock_is_held_until_the_daemon_has_ended_even_if_the_command_was_killed(
    pod: Pod,
) -> None:
    pod.allow()
    process = pod.start()
    pod.wait_ready()
    process.kill()
    process.wait()
    assert pod.directory.is_locked
    group = int(subprocess.check_output(["pgrep", "-f", str(pod.driver_root)], text=True))
    os.kill(group, signal.SIGKILL)
    pod.wait_ended()


def test_a_second_one_waits_until_the_first_has_ended(pod: Pod) -> None:
    pod.allow()
    first = pod.start()
    pod.wait_ready()
    pod.start(container="second")
    pod.wait_waiting(1)
    assert pod.log.count("started") == 1
    assert not pod.ready_file("second").exists(), "the first one is ready, and is no other's word"
    first.terminate()
    assert first.wait(15) == 0
    pod.wait(lambda: pod.log.count("started") == 2)
    pod.wait(pod.ready_file("second").exists)
    pod.wait_ready()


def test_a_daemon_that_ends_by_itself_is_an_error_with_its_last_words(pod: Pod) -> None:
    pod.allow()
    process = pod.start(BROKEN="1")
    assert pod.failure(process) == "Error: nvidia-cuda-mps-control has ended with 1: no device"
    assert not pod.directory.is_locked


@pytest.mark.parametrize(("limit", "answer"), [("1536M", "1G"), ("953M", "953M"), ("2048M", "2g")])
def test_a_limit_is_recognised_in_the_whole_units_that_the_daemon_answers_in(
    pod: Pod, limit: str, answer: str
) -> None:
    pod.allow()
    pod.start(f"--memory-limit=0={limit}", LIMIT=answer)
    pod.wait_ready()


def test_a_limit_of_another_size_is_an_error(pod: Pod) -> None:
    pod.allow()
    process = pod.start("--memory-limit=0=1536M", LIMIT="2G")
    assert "the memory limit of device 0 is 2G, not 1536M" in pod.failure(process)


def test_a_percentage_of_zero_leaves_what_the_daemon_has(pod: Pod) -> None:
    pod.allow()
    pod.start("--thread-percentage=0", FORGETS="1")
    pod.wait_ready()


def test_what_a_killed_daemon_has_left_in_its_pipe_directory_is_removed(pod: Pod) -> None:
    pod.allow()
    left = pod.directory.path / mps_layout.PIPE / "nvidia-cuda-mps-control.pid"
    left.write_text("1")
    pod.start()
    pod.wait_ready()
    assert not left.exists()


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--thread-percentage=50", "the thread percentage is 1, not 50"),
        ("--memory-limit=0=1024M", "the memory limit of device 0 is 1, not 1024M"),
    ],
)
def test_a_setting_that_the_daemon_does_not_take_is_an_error(
    pod: Pod, flag: str, says: str
) -> None:
    pod.allow()
    process = pod.start(flag, FORGETS="1")
    assert says in pod.failure(process)
    assert not pod.directory.is_ready(RUN)


def test_without_the_program_the_error_says_so(pod: Pod) -> None:
    (pod.driver_root / "usr/bin/nvidia-cuda-mps-control").unlink()
    pod.allow()
    assert "nvidia-cuda-mps-control cannot be started" in pod.failure(pod.start())


def test_after_a_reboot_it_waits_for_its_shared_memory(pod: Pod) -> None:
    pod.allow()
    pod.directory.unmount()
    process = pod.start()
    pod.wait_waiting(1)
    assert pod.log == ""
    pod.allow()
    assert process.wait(15) == 0, "the kubelet makes another container"
    pod.start()
    pod.wait_ready()


def test_shared_memory_is_mounted_once_and_goes_with_the_directory(pod: Pod) -> None:
    pod.allow()
    (pod.directory.path / mps_layout.SHM / "of-a-client").touch()
    pod.allow()
    assert (pod.directory.path / mps_layout.SHM / "of-a-client").exists()
    assert pod.directory.remove()
    assert not pod.directory.path.exists()


def test_what_no_daemon_leaves_is_refused_by_its_name(pod: Pod) -> None:
    pod.allow()
    pipe = pod.directory.path / mps_layout.PIPE
    (pipe / "a\x1b[31m").mkdir()
    said = pod.failure(pod.start())
    assert "holds what no MPS daemon makes, such as 'a\\x1b[31m'" in said
    assert "delete the claim's pods" in said
    (pipe / "a\x1b[31m").rmdir()
    (pipe / "log").symlink_to(pod.root / "shadow")
    assert "such as 'log'" in pod.failure(pod.start())
    assert not (pod.root / "shadow").exists()


@pytest.mark.skipif(not FOLLOWS_NO_LINKS, reason="the kernel is older than 5.10")
def test_who_can_write_in_the_pipe_directory_cannot_have_the_daemon_open_files_of_the_node(
    pod: Pod,
) -> None:
    """The links come when the command has looked, and before the program does."""
    pod.allow()
    pipe, target = pod.directory.path / mps_layout.PIPE, pod.root / "ld.so.preload"
    program = pod.driver_root / "usr/bin/nvidia-cuda-mps-control"
    links = "; ".join(f"os.symlink({str(target)!r}, {str(pipe / name)!r})" for name in LINKED)
    # The daemon has the flag. The command runs the program again, beside it, to ask it.
    head = f"#!{sys.executable}\nimport os, sys\nif '-f' in sys.argv: {links}\n"
    program.write_text(f"{head}{PROGRAM.partition(chr(10))[2]}")
    process = pod.start()
    assert process.wait(30) == 1
    assert "Too many levels of symbolic links" in pod.output.read_text()
    assert not target.exists()


def test_a_daemon_whose_clients_can_write_there_runs_again_and_follows_no_link(pod: Pod) -> None:
    """A plugin of an earlier version mounts no pipe directory, and gives it to clients as it is."""
    pod.allow()
    pipe = pod.directory.path / mps_layout.PIPE
    mounts.unmount(pipe)
    assert "the pipe directory cannot be restricted" in pod.failure(pod.start())
    subprocess.run(["mount", "--bind", pipe, pipe], check=True)  # as in a container
    try:
        process = pod.start()
        pod.wait_ready()
        (pipe / "link").symlink_to(pod.output)
        if FOLLOWS_NO_LINKS:
            with pytest.raises(OSError, match="symbolic links"):
                (pipe / "link").read_text()
        process.terminate()
        process.wait(30)
    finally:
        subprocess.run(["umount", "--lazy", pipe], check=True)


def test_what_a_daemon_says_is_in_the_log_of_its_pod(pod: Pod) -> None:
    pod.allow()
    pod.start()
    pod.wait_ready()
    assert "started ['-f'] GPU-0" in pod.output.read_text()


def test_a_daemon_is_ended_by_the_kernel_after_its_clients(tmp_path: Path) -> None:
    (tmp_path / "oom_score_adj").write_text("1000")
    daemon_command.spare_from_oom_killer(tmp_path)
    assert (tmp_path / "oom_score_adj").read_text() == "-997"
