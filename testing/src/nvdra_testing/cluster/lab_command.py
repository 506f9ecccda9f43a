# SPDX-License-Identifier: Apache-2.0
"""The `lab` command, and what a lab can leave behind on its machine."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from nvdra_testing import preloaded
from nvdra_testing.cluster import api_versions
from nvdra_testing.cluster.kubectl import Kubectl

LAB_PROGRAM = Path(sys.executable).with_name("lab")
STATE_DIR = Path("/var/lib/nvdra-lab")
NAMESPACES = ("cgroup", "mnt", "net", "pid", "uts")
# Where a node writes by default. A lab must remove what it adds there.
WATCHED_FOLDERS = ("/dev", "/etc", "/mnt", "/opt", "/run", "/srv", "/usr/libexec", "/usr/local")
OWN_DESCRIPTORS = Path("/dev/fd")
"""The open files of the test process itself."""
OF_OTHER_TESTS = re.compile(r"/(dev|run)/shm/(nvdra|fuzz|fz)-\w{8}(/.*)?|/tmp/pytest-of-[^/]+/.*")
"""Temporary directories of component tests, which may run beside a lab, and mounts in them."""
SYSCTLS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")


@dataclass(frozen=True)
class Lab:
    """One lab, by its name."""

    name: str

    @property
    def folder(self) -> Path:
        """The directory of its state while it is up."""
        return STATE_DIR / self.name

    @property
    def audit_log(self) -> Path:
        """The audit log of the API server, if the lab was started with `--audit-log`."""
        return self.folder / "machines/control-plane/var-lib/kube-apiserver/audit.log"

    def run(
        self, command: str, *arguments: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `lab COMMAND --name NAME ARGUMENTS` with additional environment variables."""
        argv = ["lab", command, "--name", self.name, *arguments]
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            process = preloaded.start(argv, {**os.environ, **(env or {})}, output, errors)
            status = process.wait()
            return subprocess.CompletedProcess(argv, status, _text(output), _text(errors))

    def run_checked(self, command: str, *arguments: str) -> str:
        """Run a command, fail if it fails, and return its output."""
        done = self.run(command, *arguments)
        assert done.returncode == 0, f"lab {command} {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def kubectl(self) -> Kubectl:
        """The kubectl of the lab's administrator, from the output of `lab env`."""
        text = self.run_checked("env")
        kubeconfig = re.search(r"export KUBECONFIG=(\S+)", text)
        path = re.search(r"export PATH=([^:\s]+)", text)
        assert kubeconfig, text
        assert path, text
        found = Kubectl(f"{path[1]}/kubectl", Path(kubeconfig[1]))
        return replace(
            found, resource_api_version=api_versions.preferred_version(found.run("api-versions"))
        )

    def processes(self) -> set[int]:
        """The processes in the namespaces of the lab's machines."""
        ours = self.namespaces()
        return {pid for pid in processes() if _namespaces_of(pid) & ours}

    def namespaces(self) -> set[str]:
        """The namespaces of the lab's machines, as "mnt:[…]"."""
        host = _namespaces_of(1)
        found: set[str] = set()
        for file in self.folder.glob("machines/*/pid"):
            found |= _namespaces_of(int(file.read_text().split()[0])) - host
        return found

    def init_pid(self, machine: str) -> int:
        """The first process of a machine, as this machine numbers it."""
        return int((self.folder / "machines" / machine / "pid").read_text().split()[0])

    def init_processes(self, among: Iterable[int]) -> list[int]:
        """Those processes that start the lab's machines or are the first one in a machine."""
        words = f"nvdra_lab.machines.init {self.folder}/"
        return [pid for pid in among if words in command_line(pid)]

    def leftovers(self) -> list[str]:
        """Where processes of this machine still refer to the lab: command line, cgroup or mounts.

        A process of another lab can hold a mount of this one, and with it a network namespace.
        """
        marks = (f"{self.folder}/", f"/nvdra-lab-{self.name}/")
        return [
            f"{pid}: {line}"
            for pid in processes()
            for line in _process_facts(pid)
            if any(mark in line for mark in marks)
        ]


@dataclass(frozen=True)
class HostSnapshot:
    """What a lab could leave behind on this machine, at one moment."""

    links: frozenset[str]
    routes: frozenset[str]
    rules: frozenset[str]
    mounts: frozenset[str]
    cgroups: frozenset[str]
    settings: tuple[str, ...]
    files: frozenset[str]

    def added_since(self, before: "HostSnapshot") -> dict[str, list[str]]:
        """What was added since then, by kind, without what belongs to running labs and tests."""
        pairs = {
            name: getattr(self, name) - getattr(before, name)
            for name in ("links", "routes", "rules", "mounts", "cgroups", "files")
        }
        pairs["settings"] = frozenset(set(self.settings) - set(before.settings))
        theirs = _names_of_running_labs()
        foreign = {
            kind: sorted(
                entry
                for entry in added
                if not any(mark in entry for mark in theirs) and not OF_OTHER_TESTS.fullmatch(entry)
            )
            for kind, added in pairs.items()
        }
        return {kind: added for kind, added in foreign.items() if added}


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def host_snapshot() -> HostSnapshot:
    """The current state of this machine."""
    links = json.loads(_output("ip", "-json", "link"))
    return HostSnapshot(
        links=frozenset(link["ifname"] for link in links),
        routes=frozenset(_output("ip", "route", "show", "table", "all").splitlines()),
        rules=frozenset(
            line for line in _output("iptables-save").splitlines() if line.startswith(("-A", ":"))
        ),
        mounts=frozenset(
            line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()
        ),
        cgroups=frozenset(str(path) for path in Path("/sys/fs/cgroup").glob("*/*/")),
        settings=tuple(f"{name}={_sysctl(name)}" for name in SYSCTLS),
        files=frozenset(
            str(path)
            for folder in (*WATCHED_FOLDERS, "/var/lib", "/var/log")
            for pattern in ("*", "*/*")
            for path in Path(folder).glob(pattern)
            if path.parent != OWN_DESCRIPTORS
        ),
    )


def processes_in(namespaces: set[str]) -> set[int]:
    """The processes in these namespaces."""
    return {pid for pid in processes() if _namespaces_of(pid) & namespaces}


def processes() -> list[int]:
    """All processes of this machine."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def children(pid: int) -> list[int]:
    """The child processes of the first thread of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _names_of_running_labs() -> list[str]:
    """Strings by which the resources of running labs are recognised."""
    marks = []
    for file in STATE_DIR.glob("*/lab.json"):
        lab = json.loads(file.read_text())
        marks += [str(file.parent), f"nvdra-lab-{lab['name']}"]
        marks.append(f"nvdra-lab{lab['index']}")
    return marks


def _sysctl(name: str) -> str:
    return (Path("/proc/sys") / name).read_text().strip()


def _namespaces_of(pid: int) -> set[str]:
    found = set()
    for kind in NAMESPACES:
        try:
            found.add(str(Path(f"/proc/{pid}/ns/{kind}").readlink()))
        except OSError:
            return found
    return found


def _process_facts(pid: int) -> list[str]:
    """The command line, cgroups and mounts of a process; empty if it has ended."""
    try:
        files = [Path(f"/proc/{pid}/{name}").read_text() for name in ("cgroup", "mountinfo")]
    except OSError:
        return []
    return [command_line(pid), *(line for text in files for line in text.splitlines())]


def command_line(pid: int) -> str:
    """The words that a process was started with, each with a space behind; empty if it ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return words.replace(b"\0", b" ").decode(errors="replace")


def _output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout
