# SPDX-License-Identifier: Apache-2.0
"""The command `nvdra-gpu-plugin mps-daemon`: what runs in the pod of an MPS control daemon.

It runs nvidia-cuda-mps-control while the files of the daemon's directory allow it, makes its
settings, reads them back, and says that it is ready. When they forbid it, it ends the daemon and
waits, so that the kubelet has nothing to start again. A lock on a file, which the daemon's
processes inherit, tells the plugin whether one of them lives. It needs no API server, and little
beside Python's own library: one runs for each claim. Source: docs/reference/gpu-prepare.md, "MPS".
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from nvdra_runtime.node import open_file_lock
from nvdra_runtime.process import output

from nvdra_gpu_plugin.devices import mps_layout
from nvdra_gpu_plugin.mps import daemon_arguments, mounts, multi_user
from nvdra_gpu_plugin.mps.daemon_arguments import Daemon
from nvdra_gpu_plugin.mps.daemon_output import DaemonOutput
from nvdra_gpu_plugin.mps.user_waits import UserWait

_CONTROL: Final = multi_user.PROGRAM
_INTERVAL_S: Final = 0.25
"""Between two looks at the files: what an unprepare waits for. Each costs two system calls."""
_ANSWER_TIMEOUT_S: Final = 10.0
_START_TIMEOUT_S: Final = 20.0
_END_TIMEOUT_S: Final = 3.0
"""For each of `quit`, SIGTERM and SIGKILL."""
_END_RESERVE_S: Final = 20.0
"""Of a pod's grace, for ending the daemon: more than those three take."""
_OOM_SCORE_ADJ: Final = "-997"
"""As the kubelet sets it for pods that are critical for their node."""
_MAX_LEFT: Final = 64
"""What a killed daemon can have left in its pipe directory, which has so many inodes."""
_PERMISSION: Final = "the plugin allows this daemon to run"
_UNITS: Final = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


class DaemonError(Exception):
    """The daemon cannot run as it should; the text says why."""


class Supervisor:
    """Runs one daemon as long as this process lives."""

    def __init__(self, daemon: Daemon, environ: Mapping[str, str]) -> None:
        self._daemon = daemon
        self._environment = daemon.environment(environ)
        self._ends_at: float | None = None
        self._output = DaemonOutput(None)
        self._reported: UserWait | None = None

    def end(self, grace_s: float = 0.0) -> None:
        """Have `run` end the daemon and return. May be called from a signal's handler.

        Args:
            grace_s: How long a daemon that runs may go on, if the plugin allows it. In a drain, the
                clients get SIGTERM when the daemon's pod does, and need the daemon until they have
                ended, for instance to write a checkpoint. Then the plugin forbids it.
        """
        ends_at = time.monotonic() + max(0.0, grace_s - _END_RESERVE_S)
        self._ends_at = ends_at if self._ends_at is None else min(self._ends_at, ends_at)

    def run(self) -> None:
        """Run the daemon while it is allowed, until `end` is called.

        Raises:
            DaemonError: It ended by itself, or does not do what it should.
        """
        was_waiting = ""
        while self._ends_at is None:
            was_forbidden = was_waiting == _PERMISSION
            if was_forbidden and not self._daemon.prefix and self._daemon.is_allowed:
                # A container's /dev is filled when it is created: before the driver was loaded,
                # or before a MIG device was made.
                _say("Ending, so that the kubelet makes a container with today's devices")
                return
            waits_for = self._run_if_allowed()
            if waits_for and waits_for != was_waiting:
                _say(f"Waiting until {waits_for}")
            was_waiting = waits_for
            time.sleep(_INTERVAL_S)  # noqa: TID251 - there is no loop here, and nothing else to do

    def _run_if_allowed(self) -> str:
        """Run it to its end. Returns what it waits for; empty if it has run."""
        if not self._daemon.is_allowed:
            return _PERMISSION
        with self._locked() as descriptor:
            if descriptor is None:
                return "another daemon of this claim has ended"
            if self._daemon.is_allowed:  # it may have been forbidden before the lock was held
                self._run(descriptor)
        return ""

    @contextmanager
    def _locked(self) -> Iterator[int | None]:
        """Hold the lock; None if another process has it."""
        path = self._daemon.directory / mps_layout.LOCK
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            yield descriptor if open_file_lock.acquire(descriptor) else None
        finally:
            os.close(descriptor)

    def _run(self, lock: int) -> None:
        self._unready()
        self._restrict_pipe()
        remove_leftovers(self._daemon.pipe_directory)
        arguments = [_CONTROL, "-f", *self._multi_user_option()]
        try:
            process = subprocess.Popen(
                [*self._daemon.prefix, *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(lock,),  # it is held as long as one of its processes lives
                start_new_session=True,
            )
        except OSError as error:
            raise DaemonError(f"{_CONTROL} cannot be started: {error}") from error
        self._output = DaemonOutput(process.stdout)
        try:
            if self._wait_answering(process):
                self._configure()
                self._end_early_servers()
                for file in self._ready_files:
                    temporary = file.with_name(f".{file.name}")
                    temporary.write_text(json.dumps({"run": self._daemon.run}))
                    temporary.replace(file)
                _say("The MPS control daemon is ready")
            while self._is_wanted:
                if (code := process.poll()) is not None:
                    raise DaemonError(
                        f"{_CONTROL} has ended with {code}: {self._output.last_line()}"
                    )
                self._report_wait()
                time.sleep(_INTERVAL_S)  # noqa: TID251 - as in `run`
        finally:
            self._unready()
            self._stop(process)
        _say("The MPS control daemon has been ended")

    def _multi_user_option(self) -> tuple[str, ...]:
        if not self._daemon.is_multi_user:
            return ()
        found = multi_user.option((*self._daemon.prefix, _CONTROL), self._environment)
        if not found:
            raise DaemonError(
                f"{_CONTROL} of the node's driver cannot serve several users; remove multiUser "
                "from the claim's config, or install a newer driver"
            )
        return (found,)

    @property
    def _ready_files(self) -> tuple[Path, Path]:
        """What the kubelet's probe reads, and what the plugin reads, which is written last."""
        return self._daemon.ready_file, self._daemon.directory / mps_layout.READY

    def _report_wait(self) -> None:
        """Tell the plugin of a user that waits for another one."""
        if self._daemon.is_multi_user:
            return
        found = self._output.users.current(time.monotonic())
        if found == self._reported:
            return
        self._reported = found
        file = self._daemon.directory / mps_layout.WAITING
        if found is None:
            file.unlink(missing_ok=True)
        else:
            temporary = file.with_name(f".{file.name}")
            temporary.write_text(f"{found.waiting} {found.serving}")
            temporary.replace(file)

    def _unready(self) -> None:
        self._reported = None
        (self._daemon.directory / mps_layout.WAITING).unlink(missing_ok=True)
        for file in self._ready_files:
            file.unlink(missing_ok=True)

    @property
    def _is_wanted(self) -> bool:
        is_over = self._ends_at is not None and time.monotonic() >= self._ends_at
        return not is_over and self._daemon.is_allowed

    def _wait_answering(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait until it answers. Returns False if it is to end before."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self._is_wanted:
            if (code := process.poll()) is not None:
                raise DaemonError(f"{_CONTROL} has ended with {code}: {self._output.last_line()}")
            try:
                self._ask("get_server_list")
            except DaemonError as error:
                if time.monotonic() > deadline:
                    raise DaemonError(f"{_CONTROL} does not answer: {error}") from error
                time.sleep(_INTERVAL_S)  # noqa: TID251 - as in `run`
            else:
                return True
        return False

    def _configure(self) -> None:
        """Make the settings, and read back what the daemon has understood."""
        percentage = self._daemon.thread_percentage
        if percentage is not None:
            said = self._ask(f"set_default_active_thread_percentage {percentage}")
            found = self._ask("get_default_active_thread_percentage")
            # The daemon knows no share of nothing: after 0 it has the share that it had before.
            if percentage and _number(found) != float(percentage):
                raise DaemonError(
                    f"the thread percentage is {found or 'not known'}, not {percentage}: {said}"
                )
        # By index: daemons of some drivers take a UUID, and set no limit
        # (NVIDIA/k8s-device-plugin#572).
        for index, limit in self._daemon.memory_limits:
            said = self._ask(f"set_default_device_pinned_mem_limit {index} {limit}")
            found = self._ask(f"get_default_device_pinned_mem_limit {index}")
            if not _is_limit(found, limit):
                raise DaemonError(
                    f"the memory limit of device {index} is {found or 'not known'}, not {limit}: "
                    f"{said}"
                )

    def _end_early_servers(self) -> None:
        """End the servers that clients started before the settings were made.

        A server keeps the settings of its start for all clients, also for later ones. Where a
        daemon is started again, containers of the claim are there and do not wait for it.
        """
        for word in self._ask("get_server_list").split():
            if word.isdecimal():
                _say(f"MPS server {word} was started before the settings were made, and is ended")
                self._ask(f"shutdown_server {word} -f")

    def _ask(self, command: str) -> str:
        """The daemon's answer to a command.

        Raises:
            DaemonError: It does not answer, or refuses the command.
        """
        try:
            done = subprocess.run(
                [*self._daemon.prefix, _CONTROL],
                env=self._environment,
                input=f"{command}\n",
                capture_output=True,
                text=True,
                timeout=_ANSWER_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DaemonError(f"{command}: {error}") from error
        said = " ".join(f"{done.stdout} {done.stderr}".split())
        if done.returncode:
            raise DaemonError(f"{command}: {said or f'it ended with {done.returncode}'}")
        return said

    def _restrict_pipe(self) -> None:
        """Let no symbolic link in the pipe directory be followed: the program runs as root.

        Raises:
            DaemonError: The kernel cannot do it, and clients can write there.
        """
        pipe = self._daemon.pipe_directory
        try:
            if mounts.restrict_pipe(pipe):
                return
        except OSError as error:
            raise DaemonError(f"the pipe directory cannot be restricted: {error}") from error
        if not (self._daemon.directory / mps_layout.PIPE).is_mount():
            raise DaemonError(
                "the claim was prepared by an earlier version of the driver, and its containers "
                "can write in the pipe directory; delete the claim's pods"
            )
        _say(
            "The kernel is older than 5.10: it follows links in the pipe directory, where clients "
            "cannot write"
        )

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        """End the daemon and its server, with more and more force."""
        if process.poll() is None:
            with suppress(DaemonError):
                self._ask("quit -t 1")
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with suppress(ProcessLookupError):  # the server is of the same group
                    os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_TIMEOUT_S)
                if not _has_group(process.pid):
                    return


def remove_leftovers(pipe_directory: Path) -> None:
    """Remove what a daemon that was killed has left.

    Raises:
        DaemonError: There is what no daemon leaves: clients of a claim that an earlier version of
            the driver has prepared can write there.
    """
    for count, left in enumerate(pipe_directory.iterdir()):
        if count >= _MAX_LEFT or left.is_symlink() or left.is_dir():
            raise DaemonError(
                f"the pipe directory of the claim holds what no MPS daemon makes, such as "
                f"{left.name!a}: a container of the claim has written there; delete the claim's "
                "pods"
            )
        left.unlink()


def main(arguments: Sequence[str]) -> int:
    """Run the command. Returns its exit code."""
    daemon = daemon_arguments.parse(arguments)
    supervisor = Supervisor(daemon, os.environ)  # noqa: TID251 - handed on
    spare_from_oom_killer(Path("/proc/self"))
    signal.signal(signal.SIGTERM, lambda *_: supervisor.end(daemon.grace_period_s))
    signal.signal(signal.SIGINT, lambda *_: supervisor.end())
    try:
        supervisor.run()
    except (DaemonError, OSError) as error:
        _say(f"Error: {error}")
        return 1
    return 0


def spare_from_oom_killer(process: Path) -> None:
    """Have the kernel end clients, which need more memory, before a daemon and its servers.

    The kubelet does so for pods of a system class only, and those preempt others.

    Args:
        process: Its directory in /proc.
    """
    with suppress(PermissionError):  # the daemon runs all the same
        (process / "oom_score_adj").write_text(_OOM_SCORE_ADJ)


def _has_group(group: int) -> bool:
    """Whether a process of the group lives."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _number(text: str) -> float | None:
    """The last number of an answer, which may have words around it."""
    for part in reversed(text.split()):
        with suppress(ValueError):
            return float(part.rstrip("%."))
    return None


def _is_limit(answer: str, limit: str) -> bool:
    """Whether a daemon's answer is this limit, such as `1536M`.

    It answers in whole units of its choice, rounded down: `1G`.
    """
    wanted = int(limit.removesuffix("M")) * _UNITS["M"]
    for part in reversed(answer.upper().split()):
        digits = part.rstrip("B").rstrip("KMG")
        unit = part.rstrip("B")[len(digits) :]
        if digits.isdecimal() and unit in _UNITS:
            return int(digits) == wanted // _UNITS[unit]
    return False


def _say(text: str) -> None:
    output.print_error(text)  # the container's log
