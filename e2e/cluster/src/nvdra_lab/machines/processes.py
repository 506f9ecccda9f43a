# SPDX-License-Identifier: Apache-2.0
"""Machines as processes of the host: starting, inspecting, entering and killing them."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from nvdra_lab.errors import LabError
from nvdra_lab.layout import MachineDir
from nvdra_lab.machines import machine_spec, network, status

INIT_LOG = "init"
INIT_MODULE = "nvdra_lab.machines.init"
STOP_TIMEOUT_S = 15.0
KILL_TIMEOUT_S = 30.0


def start(folder: MachineDir, namespace: Path, python: str, variables: Mapping[str, str]) -> None:
    """Start a machine whose `plan.json` is written, and record the process id of its init.

    Raises:
        LabError: The namespaces could not be created.
    """
    argv = [
        *network.enter_argv(namespace),
        "unshare",
        "--mount",
        "--propagation=private",
        "--uts",
        "--pid",
        "--fork",
        "--kill-child=SIGKILL",
        "--mount-proc",
        python,
        "-m",
        INIT_MODULE,
        str(folder.root),
    ]
    with folder.log_of(INIT_LOG).open("ab") as log:
        outer = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=variables,
            start_new_session=True,
        )
    try:
        init = _child_of(outer)
        noted = (init, started_at(init), outer.pid, started_at(outer.pid))
        folder.pid_file.write_text(" ".join(map(str, noted)))
    except BaseException:  # without the pid file, the machine would not be found later
        outer.kill()
        raise


def init_pid(folder: MachineDir) -> int | None:
    """The host's process id of a machine's init; None if it does not run."""
    noted = _recorded_processes(folder)
    return noted[0][0] if noted and started_at(noted[0][0]) == noted[0][1] else None


def kill(folder: MachineDir) -> None:
    """End a machine with all its processes, and wait until nothing of it is left.

    The kernel kills a PID namespace with its first process, which ends last. A machine whose id was
    not
    recorded because `lab` was killed is found by its command line.

    Raises:
        LabError: A process does not die, which happens only if it is stuck in the kernel.
    """
    noted = [(pid, since) for pid, since in _recorded_processes(folder) if started_at(pid) == since]
    noted += [(pid, started_at(pid)) for pid in _processes_started_for(folder)]
    for pid, _ in noted:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while any(since and started_at(pid) == since for pid, since in noted):
        _reap_children()
        if time.monotonic() > deadline:
            raise LabError(f"processes of {folder.root.name} do not end: {noted}")
        time.sleep(0.02)


def read_status(folder: MachineDir) -> status.MachineStatus:
    """The last status of a machine's init; before the first one, that it is starting."""
    try:
        return status.decode(folder.status_file.read_text())
    except FileNotFoundError:
        return status.MachineStatus()


def restart(folder: MachineDir, unit: str) -> None:
    """End a unit's process, and wait until its machine has started it again.

    A process that is busy ending is killed after `STOP_TIMEOUT_S`, as a service manager would do:
    kube-apiserver waits a minute for clients that watch.

    Raises:
        LabError: The machine has no such unit, or does not start it again.
    """
    before, init = read_status(folder), init_pid(folder)
    if init is None or unit not in before.units:
        raise LabError(f"{folder.root.name} runs no {unit}; it runs: {', '.join(before.units)}")
    _end(init, before.units[unit].pid, signal.SIGTERM)
    began, is_killed = time.monotonic(), False
    while (now := read_status(folder).units[unit]).exits == before.units[unit].exits or not now.pid:
        if time.monotonic() > began + STOP_TIMEOUT_S + KILL_TIMEOUT_S:
            raise LabError(f"{unit} did not start again within {KILL_TIMEOUT_S:.0f} s")
        if time.monotonic() > began + STOP_TIMEOUT_S and not is_killed:
            is_killed = True
            _end(init, before.units[unit].pid, signal.SIGKILL)
        time.sleep(0.05)


def _end(init: int, pid: int, how: signal.Signals) -> None:
    """Send a signal to a process of a machine, if it still runs."""
    found = host_pid(init, pid)
    if found is not None:
        os.kill(found, how)


def environment_inside(folder: MachineDir) -> dict[str, str]:
    """The environment for those who enter a machine."""
    plan = machine_spec.decode(folder.plan_file.read_text())
    return {**plan.environment, **plan.login}


def argv_inside(folder: MachineDir) -> tuple[str, ...]:
    """The beginning of a command that runs inside a machine.

    Raises:
        LabError: The machine does not run.
    """
    init = init_pid(folder)
    if init is None:
        raise LabError(f"{folder.root.name} does not run; see: lab status")
    return tuple(enter_argv(init))


def enter_argv(init: int) -> list[str]:
    """The command prefix that enters a machine."""
    return ["nsenter", f"--target={init}", "--mount", "--uts", "--net", "--pid", "--cgroup"]


def host_pid(init: int, pid: int) -> int | None:
    """The host's id of the process with id `pid` inside the machine of `init`."""
    for child in _children(init):
        if _ids(child)[-1:] == [pid]:
            return child
    return None


def resident_mib(pid: int) -> float:
    """The resident set of a process; 0 if it has ended."""
    return _field(pid, "VmRSS:") / 1024


def started_at(pid: int) -> int:
    """The start time of a process in clock ticks since boot; 0 if it does not exist or is dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def _child_of(outer: "subprocess.Popen[bytes]") -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and outer.poll() is None:
        if children := _children(outer.pid):
            return children[0]
        time.sleep(0.005)
    raise LabError(f"{' '.join(map(str, outer.args))}: the machine was not created")  # type: ignore[arg-type]


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _ids(pid: int) -> list[int]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [
        int(number) for line in lines if line.startswith("NSpid:") for number in line.split()[1:]
    ]


def _field(pid: int, name: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)


def _recorded_processes(folder: MachineDir) -> list[tuple[int, int]]:
    try:
        numbers = [int(word) for word in folder.pid_file.read_text().split()]
    except FileNotFoundError:
        return []
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _processes_started_for(folder: MachineDir) -> list[int]:
    """The processes with the command line of `start`.

    The init, and those that create its namespaces.
    """
    words = [INIT_MODULE.encode(), str(folder.root).encode()]
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if (entry / "cmdline").read_bytes().split(b"\0")[-3:-1] == words:
                    found.append(int(entry.name))
    return found


def _reap_children() -> None:
    """Wait for ended machines that this process started."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
