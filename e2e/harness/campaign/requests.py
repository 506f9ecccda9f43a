"""Which calls of a controller's trace are writes to the API server, and which read their answers.

The trace is of plain HTTP. All of a controller's requests are made by its loop, on the first
thread, each with one `sendto`; what `recvfrom` brings first on that connection is the answer. So
two points belong to a write: killed at the `sendto`, the server has never heard of it; killed at
the `recvfrom`, the write is done and nobody knows. Both are countable on that one thread. Pure.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from strace import Call

from campaign import points
from campaign.points import Node, Target

CALLS = (*points.CALLS, "recvfrom")
WRITES = frozenset(("POST", "PUT", "PATCH", "DELETE"))

_CONNECTION = re.compile(r"(?P<fd>\d+)<TCP:\[[\d.]+:\d+->[\d.]+:(?P<port>\d+)\]>")
_REQUEST = re.compile(rb"(?P<verb>GET|POST|PUT|PATCH|DELETE) (?P<path>\S+) HTTP/1\.1\r\n")
_LEASE = "/leases"


@dataclass
class _Asked:
    """The last request on a connection."""

    name: str
    is_write: bool
    is_answered: bool = False


def aims(calls: Iterable[Call], node: Node) -> list[tuple[Call, Target]]:
    """What each call is about; a write's target is its request, an answer's says so."""
    asked: dict[str, _Asked] = {}
    return [(call, _target(call, node, asked)) for call in calls]


def _target(call: Call, node: Node, asked: dict[str, _Asked]) -> Target:
    found = _CONNECTION.match(call.arguments)
    if found is None or int(found["port"]) != node.api_port or call.name == "connect":
        aim = points.target(call, node)
        return Target(aim.name, aim.is_change and call.name != "connect", aim.path)
    if call.name == "recvfrom":
        return _received(asked.get(found["fd"]))
    request = _REQUEST.match(call.data)
    if request is None:
        before = asked.get(found["fd"])
        return Target(f"rest of {before.name}" if before else call.arguments)
    # A lease is renewed by the clock: there is no run in which its writes have a fixed place.
    verb, path = request["verb"].decode(), request["path"].decode()
    is_write = verb in WRITES and _LEASE not in path
    one = asked[found["fd"]] = _Asked(f"{verb} {name(path)}", is_write)
    return Target(one.name if is_write else "reads and the lease", is_write)


def _received(asked: _Asked | None) -> Target:
    if asked is None or not asked.is_write or asked.is_answered:
        return Target("news, and answers to reads", is_change=False)
    asked.is_answered = True
    return Target(f"answer to {asked.name}")


def name(path: str) -> str:
    """A path for people, without what differs from run to run."""
    path = re.sub(r"^/apis?/(?:[\w.]+/)?v\w+/", "", path)
    path = re.sub(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<uid>", path)
    path = re.sub(r"namespaces/(\w+)-[0-9a-f]{8}/", r"\1/", path)
    return re.sub(r"-nvdra-[0-9a-f]{8}$", "", path)
