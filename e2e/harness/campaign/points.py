"""Which calls change something outside of the process, and what each of them is called. Pure.

A call that changes nothing but the process itself leaves nothing behind when it is the last one, so
to be killed there is to be killed at the next one that does. What we cannot tell counts as change.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from strace import Call

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
    "connect",
    "sendmsg",
    "sendto",
)
"""What is recorded. `sendto` is how Python writes to a socket, TLS included."""

_NAMING = "name of a thread"
_HOUSEKEEPING = frozenset((4, 6, 8))  # HTTP/2: SETTINGS, PING, WINDOW_UPDATE
_DESCRIPTOR = re.compile(r"\d+<(?P<what>.*?)>(?:[,)]| <unfinished)")
_PATH = re.compile(r'"(?P<path>[^"]*)"')
_ENDPOINT = re.compile(r"\[(?P<own>\d+)->(?P<peer>\d+)(?:,\"(?P<path>[^\"]*)\")?\]")
_PORT = re.compile(r"sin_port=htons\((\d+)\)|->[\d.]+:(\d+)\]")


class Point(NamedTuple):
    """A call to be killed at.

    Attributes:
        call: Its name.
        target: What it changes, the same on every node: `state.sqlite-wal`, `API server`.
        nth: Which one of those, from 1.
    """

    call: str
    target: str
    nth: int


@dataclass(frozen=True)
class Place:
    """Where a point was met.

    Attributes:
        thread: By name.
        index: Which call of that name it was in its thread, from 1.
        nth: Which one of those on that very file, in its thread.
        path: The file itself, where it has a name.
    """

    thread: str
    index: int
    nth: int
    path: str

    def moved(self, recorded_at: str, here: str) -> "Place":
        """The same on another lane."""
        return replace(self, path=self.path.replace(recorded_at, here))


@dataclass(frozen=True)
class Node:
    """How to read a call's target.

    Attributes:
        root: The lane's directory; files are named from there.
        api_port: Where the API server listens.
    """

    root: str
    api_port: int


@dataclass(frozen=True)
class Target:
    """What a call is about; without a change, why it does not count."""

    name: str
    is_change: bool = True
    path: str = ""


def changes(calls: Iterable[Call], node: Node) -> tuple[list[tuple[Point, Place]], Counter[str]]:
    """The points among recorded calls, in order, and how many others there were of each kind."""
    return counted([(call, target(call, node)) for call in calls])


def counted(
    aims: Iterable[tuple[Call, Target]],
) -> tuple[list[tuple[Point, Place]], Counter[str]]:
    """The same of calls whose targets are known."""
    met: Counter[tuple[str, str]] = Counter()
    indexes: Counter[tuple[int, str]] = Counter()
    on_path: Counter[tuple[int, str, str]] = Counter()
    points, others = [], Counter[str]()
    for call, aim in aims:
        if aim.name == _NAMING:
            continue  # over when anybody can attach to a thread by its name
        indexes[call.tid, call.name] += 1
        on_path[call.tid, call.name, aim.path] += 1
        if not aim.is_change:
            others[aim.name] += 1
            continue
        met[call.name, aim.name] += 1
        place = Place(
            call.thread,
            indexes[call.tid, call.name],
            on_path[call.tid, call.name, aim.path],
            aim.path,
        )
        points.append((Point(call.name, aim.name, met[call.name, aim.name]), place))
    return points, others


def fatal(calls: Sequence[Call], name: str, node: Node) -> Point | None:
    """The point at which the process died, in a call of that name; None when it was no change."""
    return struck([(call, target(call, node)) for call in calls], name)


def struck(aims: Sequence[tuple[Call, Target]], name: str) -> Point | None:
    """The same of calls whose targets are known."""
    dead = [at for at, (call, _) in enumerate(aims) if call.is_fatal and call.name == name]
    if not dead or not aims[dead[0]][1].is_change:
        return None
    points, _ = counted(aims)
    before = sum(aim.is_change for _, aim in aims[: dead[0]])
    return points[before][0]


def target(call: Call, node: Node) -> Target:
    """What the call is about."""
    if call.name in ("rename", "renameat", "renameat2", "link", "symlink"):
        paths = [found["path"] for found in _PATH.finditer(call.arguments)]
        # By the former name: strace's filter of paths does not look at the new one.
        return Target(" to ".join(name(path, node) for path in paths), path=paths[0])
    if call.name in ("unlink", "unlinkat", "mkdir", "mkdirat", "rmdir"):
        found = _PATH.search(call.arguments)
        path = found["path"] if found else call.arguments
        return Target(name(path, node), path=path)
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
    if what.startswith(("anon_inode:", "pipe:")):
        return Target("wake-up of a thread", is_change=False)
    return Target(what)


def _file(path: str, node: Node) -> Target:
    if path.endswith("/comm"):
        return Target(_NAMING, is_change=False)
    if path.endswith(".log"):
        return Target("the log", is_change=False)
    return Target(name(path, node), path=path)


def _connection(call: Call, node: Node) -> Target:
    if port := _PORT.search(call.arguments):
        return _tcp(f"->:{port[1]}]", node)
    path = call.arguments.partition('sun_path="')[2].partition('"')[0]
    if "nscd" in path:
        return Target("look-up of a user's name", is_change=False)
    if path.startswith(node.root):
        return Target("look whether its own socket answers", is_change=False)
    return Target(path or call.arguments)


def _tcp(what: str, node: Node) -> Target:
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
    # By its directory: a socket may have been bound by another name than it has now.
    is_registration = "/plugins_registry/" in found["path"]
    return Target(f"answer on the {'registration' if is_registration else 'DRA'} socket")


def _frames(data: bytes) -> set[int]:
    """Types of the HTTP/2 frames in what is sent."""
    types = set()
    while len(data) >= 9:
        types.add(data[3])
        data = data[9 + int.from_bytes(data[:3], "big") :]
    return types


def name(path: str, node: Node) -> str:
    """A file's name for people, without what differs from node to node and from run to run."""
    name = path.removeprefix(f"{node.root}/")
    name = re.sub(r"^k/plugins/gpu\.nvidia\.com/", "", name)
    name = re.sub(r"device_[0-9a-f]{10}(?=\.)", "device_<generation>", name)
    name = re.sub(r"[0-9a-f]{16}\.tmp|(?<=\.)[0-9a-f]{6}$", "<random>", name)
    return name or "."
