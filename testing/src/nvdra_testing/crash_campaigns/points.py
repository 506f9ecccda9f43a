# SPDX-License-Identifier: Apache-2.0
"""Decides which calls change something outside of the process, and names their targets.

A call that changes only the process itself has no effect when it is the last one, so a kill there
is the same as a kill at the next call that changes something. Unknown calls count as changes.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from nvdra_testing.faults.strace import Call

CALLS = (
    "write",
    "writev",
    "pwrite64",
    "fsync",
    "fdatasync",
    "ftruncate",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "symlink",
    "symlinkat",
    "unlink",
    "unlinkat",
    "mkdir",
    "mkdirat",
    "rmdir",
    "mount",
    "umount2",
    "connect",
    "sendmsg",
    "sendto",
)
"""The recorded calls. Python writes to sockets with `sendto`, also with TLS."""

SYSFS = "sysfs: "
"""How the targets of writes begin that change the driver of a PCI function."""

_NAMING = "name of a thread"
_HOUSEKEEPING = frozenset((4, 6, 8))  # HTTP/2: SETTINGS, PING, WINDOW_UPDATE
_DESCRIPTOR = re.compile(r"\d+<(?P<what>.*?)>(?:[,)]| <unfinished)")
_PATH = re.compile(r'"(?P<path>[^"]*)"')
_ENDPOINT = re.compile(r"\[(?P<own>\d+)->(?P<peer>\d+)(?:,\"(?P<path>[^\"]*)\")?\]")
_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CLAIM_SPEC = re.compile(r"(?:(?<=-claim_)|(?<=-claim-device_))[0-9a-f][0-9a-f-]*(?=\.)")
"""The UID in a CDI spec's name; the name of a temporary file has only its beginning."""
_DAEMON = re.compile(r"(?<=mps/<uid>-)[0-9a-f]{5}\b")
"""What the name of an MPS daemon's directory has of its devices."""
_SYSFS_WRITE = re.compile(rb"(?P<path>/[^\t\n]+)\t(?P<text>[^\t\n]*)\n")
"""What the GPU plugin tells its process that writes to sysfs."""
_PORT = re.compile(r"sin_port=htons\((\d+)\)|->[\d.]+:(\d+)\]")


class KillPoint(NamedTuple):
    """A call at which the process is killed.

    Attributes:
        call: Its name.
        target: What it changes, with the same name on every node: `state.sqlite-wal`, `API server`.
        nth: Its number among the calls on that target, from 1.
    """

    call: str
    target: str
    nth: int


@dataclass(frozen=True)
class CallPosition:
    """Where a call was made.

    Attributes:
        thread: The name of the thread.
        index: Its number among the thread's calls of that name, from 1.
        nth: Its number among the thread's calls of that name on the same file.
        path: The file, if it has a name.
    """

    thread: str
    index: int
    nth: int
    path: str

    def relocated(self, recorded_at: str, here: str) -> "CallPosition":
        """The same position in another sandbox."""
        return replace(self, path=self.path.replace(recorded_at, here))


@dataclass(frozen=True)
class TraceNames:
    """What is needed to name a call's target.

    Attributes:
        root: The sandbox's directory; files are named relative to it.
        api_port: The port of the API server.
    """

    root: str
    api_port: int


@dataclass(frozen=True)
class Target:
    """What a call is about; if it is no change, the name says why."""

    name: str
    is_change: bool = True
    path: str = ""


def kill_points(
    calls: Iterable[Call], node: TraceNames
) -> tuple[list[tuple[KillPoint, CallPosition]], Counter[str]]:
    """The kill points among recorded calls, in order, and the number of other calls by kind."""
    return count_points([(call, target(call, node)) for call in calls])


def count_points(
    aims: Iterable[tuple[Call, Target]],
) -> tuple[list[tuple[KillPoint, CallPosition]], Counter[str]]:
    """The same for calls whose targets are known."""
    met: Counter[tuple[str, str]] = Counter()
    indexes: Counter[tuple[int, str]] = Counter()
    on_path: Counter[tuple[int, str, str]] = Counter()
    points, others = [], Counter[str]()
    for call, aim in aims:
        if aim.name == _NAMING:
            continue  # it happens before strace can attach to a thread by its name
        indexes[call.tid, call.name] += 1
        on_path[call.tid, call.name, aim.path] += 1
        if not aim.is_change:
            others[aim.name] += 1
            continue
        met[call.name, aim.name] += 1
        place = CallPosition(
            call.thread,
            indexes[call.tid, call.name],
            on_path[call.tid, call.name, aim.path],
            aim.path,
        )
        points.append((KillPoint(call.name, aim.name, met[call.name, aim.name]), place))
    return points, others


def point_of_death(calls: Sequence[Call], name: str, node: TraceNames) -> KillPoint | None:
    """The kill point at which the process died in a call of that name; None if it was no change."""
    return point_of_death_in([(call, target(call, node)) for call in calls], name)


def point_of_death_in(aims: Sequence[tuple[Call, Target]], name: str) -> KillPoint | None:
    """The same for calls whose targets are known."""
    dead = [at for at, (call, _) in enumerate(aims) if call.is_fatal and call.name == name]
    if not dead or not aims[dead[0]][1].is_change:
        return None
    points, _ = count_points(aims)
    before = sum(aim.is_change for _, aim in aims[: dead[0]])
    return points[before][0]


def target(call: Call, node: TraceNames) -> Target:
    """What a call is about; the simulated hardware's own files are no change of the process."""
    found = _target(call, node)
    hardware = f"{node.root}/hw/"
    is_above = call.name.startswith("mkdir") and hardware.startswith(f"{found.path}/")
    if is_above or f"{found.path}/".startswith(hardware):
        return replace(found, is_change=False, name="a file of the simulated hardware")
    return found


def _target(call: Call, node: TraceNames) -> Target:
    if call.name in ("rename", "renameat", "renameat2", "link", "symlink"):
        paths = [found["path"] for found in _PATH.finditer(call.arguments)]
        # By the old name: strace's path filter does not look at the new one.
        return Target(" to ".join(display_name(path, node) for path in paths), path=paths[0])
    if call.name == "mount":
        path = [found["path"] for found in _PATH.finditer(call.arguments)][1]
        return Target(display_name(path, node), path=path)
    if call.name in ("unlink", "unlinkat", "mkdir", "mkdirat", "rmdir", "umount2"):
        found = _PATH.search(call.arguments)
        path = found["path"] if found else call.arguments
        return Target(display_name(path, node), path=path)
    if call.name == "connect":
        return _connection(call, node)
    described = _DESCRIPTOR.match(call.arguments)
    what = described["what"] if described else call.arguments
    if what.startswith("/"):
        return _file(what, node)
    if what.startswith("TCP"):
        return _tcp(what, node)
    if what.startswith("UNIX"):
        return _unix(what, call)
    if what.startswith("pipe:") and (asked := _SYSFS_WRITE.fullmatch(call.data)):
        file = display_name(asked["path"].decode(), node).removeprefix("hw/mnt/")
        return Target(f"{SYSFS}{asked['text'].decode() or 'newline'} to {file}")
    if what.startswith(("anon_inode:", "pipe:")):
        return Target("wake-up of a thread", is_change=False)
    return Target(what)


def _file(path: str, node: TraceNames) -> Target:
    if path.endswith("/comm"):
        return Target(_NAMING, is_change=False)
    if path.endswith(".log"):
        return Target("the log", is_change=False)
    return Target(display_name(path, node), path=path)


def _connection(call: Call, node: TraceNames) -> Target:
    if _PORT.search(call.arguments):
        # Which request needs a new connection is chance; only what is sent on it changes something.
        return Target("connection to a server", is_change=False)
    path = call.arguments.partition('sun_path="')[2].partition('"')[0]
    if "nscd" in path:
        return Target("look-up of a user's name", is_change=False)
    if path.startswith("/proc/self/fd/"):
        return Target("look whether nvidia-persistenced answers", is_change=False)
    if path.startswith(node.root):
        return Target("look whether its own socket answers", is_change=False)
    return Target(path or call.arguments)


def _tcp(what: str, node: TraceNames) -> Target:
    port = what.rpartition(":")[2].rstrip("]")
    if port == str(node.api_port):
        return Target("API server")
    return Target("answer to a probe", is_change=False)


def _unix(what: str, call: Call) -> Target:
    found = _ENDPOINT.search(what)
    if found is None or not found["path"]:
        return Target("wake-up of a thread", is_change=False)
    if call.name == "sendmsg" and _frames(call.data) <= _HOUSEKEEPING:
        return Target("HTTP/2 housekeeping", is_change=False)
    # By its directory: the socket may have been bound under another name.
    is_registration = "/plugins_registry/" in found["path"]
    return Target(f"answer on the {'registration' if is_registration else 'DRA'} socket")


def _frames(data: bytes) -> set[int]:
    """The types of the HTTP/2 frames in the data."""
    types = set()
    while len(data) >= 9:
        types.add(data[3])
        data = data[9 + int.from_bytes(data[:3], "big") :]
    return types


def display_name(path: str, node: TraceNames) -> str:
    """A file's name without parts that differ between nodes and runs."""
    name = path.removeprefix(f"{node.root}/")
    name = re.sub(r"^k/plugins/[\w.-]+/", "", name)
    name = _CLAIM_SPEC.sub("<uid>", _UID.sub("<uid>", name))
    name = _DAEMON.sub("<devices>", name)
    name = re.sub(r"device_\d[\d.]*(?=\.(yaml|\w{16}\.tmp))", "device_<generation>", name)
    name = re.sub(r"[0-9a-f]{16}\.tmp|(?<=\.)(?:[0-9a-f]{6}|[0-9a-f]{8})$", "<random>", name)
    return name or "."
