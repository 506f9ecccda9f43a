"""Which calls of a controller's trace are writes to the API server. Pure.

The trace is of plain HTTP. All of a controller's requests are made by its loop, on the first
thread, each with one `sendto`, so that they can be counted there. Two points belong to each write:
killed in its `sendto`, the server has never heard of it; killed when the server has answered and
before anybody has read that, it is done and nobody knows.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from strace import Call

from campaign import points
from campaign.points import Node, Target

ANSWERED = "answered"
"""In place of a call's name: killed after it."""
WRITES = frozenset(("POST", "PUT", "PATCH", "DELETE"))

_CONNECTION = re.compile(r"(?P<fd>\d+)<TCP:\[[\d.]+:\d+->[\d.]+:(?P<port>\d+)\]>")
_REQUEST = re.compile(rb"(?P<verb>GET|POST|PUT|PATCH|DELETE) (?P<path>\S+) HTTP/1\.1\r\n")
_LEASE = "/leases"


@dataclass(frozen=True)
class Request:
    """What a call asks of the API server.

    Attributes:
        verb: HTTP method.
        path: As asked, with the query.
    """

    verb: str
    path: str

    @property
    def is_write(self) -> bool:
        """Does it change anything at all?"""
        return self.verb in WRITES

    @property
    def is_act(self) -> bool:
        """Does it do something for a domain?

        A lease is renewed by the clock: there is no run in which its writes have a fixed place.
        """
        return self.is_write and _LEASE not in self.path

    @property
    def is_event(self) -> bool:
        """Does it only tell people something?"""
        return self.path.partition("?")[0].endswith("/events")

    @classmethod
    def of(cls, call: Call, node: Node) -> "Request | None":
        """What the call asks; None where it begins no request."""
        found = _CONNECTION.match(call.arguments)
        if found is None or int(found["port"]) != node.api_port or call.name != "sendto":
            return None
        asked = _REQUEST.match(call.data)
        return None if asked is None else cls(asked["verb"].decode(), asked["path"].decode())

    @classmethod
    def told(cls, text: str) -> "Request":
        """What the interposer has noted as `<METHOD> <path>`."""
        verb, _, path = text.partition(" ")
        return cls(verb, path)

    def __str__(self) -> str:
        """The same for people, without what differs from run to run."""
        path = re.sub(r"^/apis?/(?:[\w.]+/)?v\w+/", "", self.path)
        path = re.sub(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<uid>", path)
        path = re.sub(r"namespaces/(\w+)-[0-9a-f]{8}/", r"\1/", path)
        return f"{self.verb} {re.sub(r'-nvdra-[0-9a-f]{8}$', '', path)}"


def aims(calls: Iterable[Call], node: Node) -> list[tuple[Call, Target]]:
    """What each call is about; a write's target is its request."""
    asked: dict[str, Request] = {}
    return [(call, _target(call, node, asked)) for call in calls]


def _target(call: Call, node: Node, asked: dict[str, Request]) -> Target:
    found = _CONNECTION.match(call.arguments)
    if found is None or int(found["port"]) != node.api_port or call.name == "connect":
        aim = points.target(call, node)
        return Target(aim.name, aim.is_change and call.name != "connect", aim.path)
    request = Request.of(call, node)
    if request is None:
        before = asked.get(found["fd"])
        name = f"rest of {before}" if before else call.arguments
        return Target(name, is_change=before is None or before.is_act)
    asked[found["fd"]] = request
    return Target(str(request) if request.is_act else "reads and the lease", request.is_act)
