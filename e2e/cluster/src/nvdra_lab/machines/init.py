# SPDX-License-Identifier: Apache-2.0
"""The first process of a machine: runs the machine's steps, then keeps its units running.

It is process 1 of new mount, PID and UTS namespaces, so that its end is the end of everything that
the machine started. It lives as long as the machine and uses only the standard library. It finds
the
machine's directory by an open descriptor, because the machine's own /var/lib hides the path.
"""

import http.client
import os
import signal
import socket
import ssl
import sys
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path

from nvdra_lab.machines import cgroups, filesystems, machine_spec, mounts, status

RESTART_DELAY_S = 1.0
POLL_S = 0.05


class StepError(Exception):
    """A step failed; `name` is the unit or step whose log says more."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


class Init:
    """Process 1 of one machine."""

    def __init__(self, plan: machine_spec.Machine, folder: int) -> None:
        self._plan = plan
        self._folder = folder
        self._status = status.MachineStatus()
        self._argv: dict[str, tuple[str, ...]] = {}
        self._restart_times: dict[str, float] = {}
        self._exit_statuses: dict[int, int] = {}

    def run(self) -> None:
        """Run the steps, then supervise the units until killed.

        Raises:
            StepError: A step failed; the status says so, too.
        """
        try:
            for step in self._plan.steps:
                self._run_step(step)
        except StepError as failure:
            self._report(phase="failed", step=failure.name, reason=str(failure))
            raise
        except OSError as failure:
            self._report(phase="failed", step="init", reason=str(failure))
            raise
        self._report(phase="running", step="")
        while True:
            self._handle_exits()
            time.sleep(POLL_S * 4)

    def _run_step(self, step: machine_spec.Step) -> None:
        match step:
            case machine_spec.Cgroup():
                cgroups.enter(step.folder)
            case machine_spec.Bind():
                filesystems.bind(step)
            case machine_spec.Overlay():
                filesystems.overlay(step)
            case machine_spec.Devices():
                filesystems.devices(step)
            case machine_spec.Run():
                self._report(step=step.name)
                self._run_to_end(step)
            case machine_spec.Start():
                self._argv[step.name] = step.argv
                self._start(step.name)
            case machine_spec.WaitSocket():
                self._report(step=step.name)
                self._wait(step.name, step.timeout_s, lambda: _accepts(socket.AF_UNIX, step.path))
            case machine_spec.WaitMount():
                self._report(step=step.name)
                self._wait(step.name, step.timeout_s, lambda: step.path in mounts.mount_points())
            case machine_spec.WaitPort():
                self._report(step=step.name)
                address = ("127.0.0.1", step.port)
                self._wait(step.name, step.timeout_s, lambda: _accepts(socket.AF_INET, address))
            case machine_spec.WaitHTTPS():
                self._report(step=step.name)
                context = ssl.create_default_context(cafile=step.ca)
                self._wait(step.name, step.timeout_s, lambda: _answers(step.url, context))

    def _run_to_end(self, step: machine_spec.Run) -> None:
        pid = self._spawn(step.name, step.argv)
        while pid not in self._exit_statuses:
            self._handle_exits()
            time.sleep(POLL_S / 5)
        wait_status = self._exit_statuses.pop(pid)
        if wait_status:
            raise StepError(step.name, status.describe_exit(wait_status))

    def _wait(self, name: str, timeout_s: float, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            self._handle_exits()
            unit = self._status.units.get(name)
            if unit is not None and unit.exits:
                raise StepError(name, unit.last_exit)
            if time.monotonic() > deadline:
                raise StepError(name, f"did not answer within {timeout_s:.0f} s")
            time.sleep(POLL_S)

    def _handle_exits(self) -> None:
        """Record which processes have ended, and restart units that are due."""
        while True:
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._record_exit(pid, wait_status)
        for name, due in list(self._restart_times.items()):
            if time.monotonic() >= due:
                del self._restart_times[name]
                self._start(name)

    def _record_exit(self, pid: int, wait_status: int) -> None:
        for name, unit in self._status.units.items():
            if unit.pid == pid:
                unit.pid = 0
                unit.exits += 1
                unit.last_exit = status.describe_exit(wait_status)
                self._restart_times[name] = time.monotonic() + RESTART_DELAY_S
                self._report()
                return
        self._exit_statuses[pid] = wait_status
        for stale in list(self._exit_statuses)[:-16]:  # orphans of containers are not waited for
            del self._exit_statuses[stale]

    def _start(self, name: str) -> None:
        unit = self._status.units.setdefault(name, status.UnitStatus())
        unit.pid = self._spawn(name, self._argv[name])
        self._report()

    def _spawn(self, name: str, argv: tuple[str, ...]) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        log = os.open(f"log/{name}.log", flags, 0o644, dir_fd=self._folder)
        null = os.open(os.devnull, os.O_RDONLY)
        try:
            return os.posix_spawnp(
                argv[0],
                argv,
                self._plan.environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, source, target)
                    for source, target in ((null, 0), (log, 1), (log, 2))
                ],
                setsid=True,
            )
        except OSError as error:
            raise StepError(name, f"{argv[0]} does not start: {error.strerror}") from error
        finally:
            os.close(log)
            os.close(null)

    def _report(
        self, phase: status.Phase | None = None, step: str | None = None, reason: str = ""
    ) -> None:
        if phase is not None:
            self._status.phase = phase
        if step is not None:
            self._status.step = step
        self._status.reason = reason
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        descriptor = os.open("status.new", flags, 0o644, dir_fd=self._folder)
        with os.fdopen(descriptor, "w") as file:
            file.write(status.encode(self._status))
        os.rename("status.new", "status.json", src_dir_fd=self._folder, dst_dir_fd=self._folder)


def _accepts(family: socket.AddressFamily, address: str | tuple[str, int]) -> bool:
    with socket.socket(family) as client:
        try:
            client.connect(address)
        except OSError:
            return False
        return True


def _answers(url: str, context: ssl.SSLContext) -> bool:
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPSConnection(parts.netloc, timeout=2, context=context)
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def main() -> None:
    """`python -m nvdra_lab.machines.init FOLDER`.

    Run the machine of a directory with `plan.json`.
    """
    root = Path(sys.argv[1])
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    plan = machine_spec.decode((root / "plan.json").read_text())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    socket.sethostname(plan.name)
    os.chdir("/")
    filesystems.separate_mounts()
    try:
        Init(plan, folder).run()
    except StepError as failure:
        sys.exit(f"{failure.name}: {failure}")


if __name__ == "__main__":
    main()
