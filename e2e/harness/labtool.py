"""The `lab` command as a test uses it, and what a lab can leave behind on its machine."""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import served
from kubectl import Kubectl

LAB = Path(sys.executable).with_name("lab")
STATE = Path("/var/lib/nvdra-lab")
NAMESPACES = ("cgroup", "mnt", "net", "pid", "uts")
# Where a node writes by default; what a lab adds there must be gone with it.
FOLDERS = ("/dev", "/etc", "/mnt", "/opt", "/run", "/srv", "/usr/libexec", "/usr/local")
OUR_OWN_FILES = Path("/dev/fd")
"""What the process that looks has open."""
SYSCTLS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")


@dataclass(frozen=True)
class Lab:
    """One lab by its name."""

    name: str

    @property
    def folder(self) -> Path:
        """Where its state is while it is up."""
        return STATE / self.name

    def run(
        self, command: str, *arguments: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `lab COMMAND --name … ARGUMENTS` with more environment, whatever comes of it."""
        variables = [f"{name}={value}" for name, value in (env or {}).items()]
        argv = ["env", *variables, str(LAB), command, "--name", self.name, *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    def must(self, command: str, *arguments: str) -> str:
        """Run it, give its output; a failure carries what it said."""
        done = self.run(command, *arguments)
        assert done.returncode == 0, f"lab {command} {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def kubectl(self) -> Kubectl:
        """The lab's administrator, by what `lab env` says."""
        text = self.must("env")
        kubeconfig = re.search(r"export KUBECONFIG=(\S+)", text)
        path = re.search(r"export PATH=([^:\s]+)", text)
        assert kubeconfig, text
        assert path, text
        found = Kubectl(f"{path[1]}/kubectl", Path(kubeconfig[1]))
        return replace(found, dra=served.best(found.run("api-versions")))

    def processes(self) -> set[int]:
        """Every process of the lab: those in the namespaces of its machines."""
        ours = self.namespaces()
        return {pid for pid in processes() if _namespaces_of(pid) & ours}

    def namespaces(self) -> set[str]:
        """The namespaces of the lab's machines, as "mnt:[…]"."""
        host = _namespaces_of(1)
        found: set[str] = set()
        for file in self.folder.glob("machines/*/pid"):
            found |= _namespaces_of(int(file.read_text().split()[0])) - host
        return found

    def machines(self, among: Iterable[int]) -> list[int]:
        """Those of these processes that make the lab's machines, or are the first in one."""
        words = f"nvdra_lab.init {self.folder}/"
        return [pid for pid in among if words in _command_line(pid)]

    def traces(self) -> list[str]:
        """What processes of this machine have of the lab: in their command line, cgroup or mounts.

        A process of another lab may hold a mount of this one, and so a network namespace.
        """
        marks = (f"{self.folder}/", f"/nvdra-lab-{self.name}/")
        return [
            f"{pid}: {line}"
            for pid in processes()
            for line in _facts_of(pid)
            if any(mark in line for mark in marks)
        ]


@dataclass(frozen=True)
class Host:
    """What a lab could leave on this machine, as it is at one moment."""

    links: frozenset[str]
    routes: frozenset[str]
    rules: frozenset[str]
    mounts: frozenset[str]
    cgroups: frozenset[str]
    settings: tuple[str, ...]
    files: frozenset[str]

    def added_since(self, before: "Host") -> dict[str, list[str]]:
        """What is here now and was not before, by kind, less what belongs to labs that are up."""
        pairs = {
            name: getattr(self, name) - getattr(before, name)
            for name in ("links", "routes", "rules", "mounts", "cgroups", "files")
        }
        pairs["settings"] = frozenset(set(self.settings) - set(before.settings))
        theirs = _marks_of_labs()
        foreign = {
            kind: sorted(one for one in added if not any(mark in one for mark in theirs))
            for kind, added in pairs.items()
        }
        return {kind: added for kind, added in foreign.items() if added}


def look() -> Host:
    """This machine now."""
    links = json.loads(_output("ip", "-json", "link"))
    return Host(
        links=frozenset(link["ifname"] for link in links),
        routes=frozenset(_output("ip", "route", "show", "table", "all").splitlines()),
        rules=frozenset(
            line for line in _output("iptables-save").splitlines() if line.startswith(("-A", ":"))
        ),
        mounts=frozenset(
            line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()
        ),
        cgroups=frozenset(str(path) for path in Path("/sys/fs/cgroup").glob("*/*/")),
        settings=tuple(f"{name}={_setting(name)}" for name in SYSCTLS),
        files=frozenset(
            str(path)
            for folder in (*FOLDERS, "/var/lib", "/var/log")
            for pattern in ("*", "*/*")
            for path in Path(folder).glob(pattern)
            if path.parent != OUR_OWN_FILES
        ),
    )


def alive(namespaces: set[str]) -> set[int]:
    """The processes that are in one of those namespaces."""
    return {pid for pid in processes() if _namespaces_of(pid) & namespaces}


def processes() -> list[int]:
    """Every process of this machine."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def children(pid: int) -> list[int]:
    """The processes that the first thread of a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _marks_of_labs() -> list[str]:
    """Words that tell what belongs to one of the labs that are up now."""
    marks = []
    for file in STATE.glob("*/lab.json"):
        lab = json.loads(file.read_text())
        marks += [str(file.parent), f"nvdra-lab-{lab['name']}"]
        marks.append(f"nvdra-lab{lab['index']}")
    return marks


def _setting(name: str) -> str:
    return (Path("/proc/sys") / name).read_text().strip()


def _namespaces_of(pid: int) -> set[str]:
    found = set()
    for kind in NAMESPACES:
        try:
            found.add(str(Path(f"/proc/{pid}/ns/{kind}").readlink()))
        except OSError:
            return found
    return found


def _facts_of(pid: int) -> list[str]:
    """A process's command line, and the lines of its cgroups and mounts; none when it is gone."""
    try:
        files = [Path(f"/proc/{pid}/{name}").read_text() for name in ("cgroup", "mountinfo")]
    except OSError:
        return []
    return [_command_line(pid), *(line for text in files for line in text.splitlines())]


def _command_line(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return words.replace(b"\0", b" ").decode(errors="replace")


def _output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout
