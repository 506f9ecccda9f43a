# SPDX-License-Identifier: Apache-2.0
"""Finds the writes to the API server in a trace of the controller's calls.

The trace shows plain HTTP. The controller sends all requests from its first thread, each with one
`sendto`, so that they can be counted. Each write has two kill points: on entry to `sendto`, when
the
server does not know about the write, and after the server's answer, when the write is done but the
controller has not read the answer.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from nvdra_testing.crash_campaigns import points
from nvdra_testing.crash_campaigns.points import Target, TraceNames
from nvdra_testing.faults.strace import Call

AFTER_ANSWER = "answered"
"""Used as the name of the call when the process is killed after the answer."""
WRITES = frozenset(("POST", "PUT", "PATCH", "DELETE"))

_CONNECTION = re.compile(r"(?P<fd>\d+)<TCP:\[[\d.]+:\d+->[\d.]+:(?P<port>\d+)\]>")
_REQUEST = re.compile(rb"(?P<verb>GET|POST|PUT|PATCH|DELETE) (?P<path>\S+) HTTP/1\.1\r\n")
_LEASE = "/leases"


@dataclass(frozen=True)
class TracedRequest:
    """A request to the API server.

    Attributes:
        verb: The HTTP method.
        path: The path with the query.
    """

    verb: str
    path: str

    @property
    def is_write(self) -> bool:
        """Whether it changes anything."""
        return self.verb in WRITES

    @property
    def changes_domain(self) -> bool:
        """Whether it changes objects of a domain.

        Writes of leases do not count: they depend on the clock and have no fixed place in a run.
        """
        return self.is_write and _LEASE not in self.path

    @property
    def is_event(self) -> bool:
        """Whether it only writes an event."""
        return self.path.partition("?")[0].endswith("/events")

    @classmethod
    def from_call(cls, call: Call, node: TraceNames) -> "TracedRequest | None":
        """The request that a call begins; None if it begins none."""
        found = _CONNECTION.match(call.arguments)
        if found is None or int(found["port"]) != node.api_port or call.name != "sendto":
            return None
        asked = _REQUEST.match(call.data)
        return None if asked is None else cls(asked["verb"].decode(), asked["path"].decode())

    @classmethod
    def from_text(cls, text: str) -> "TracedRequest":
        """A request from `<METHOD> <path>`, as the proxy notes it."""
        verb, _, path = text.partition(" ")
        return cls(verb, path)

    def __str__(self) -> str:
        """The request without parts that differ from run to run."""
        path = re.sub(r"^/apis?/(?:[\w.]+/)?v\w+/", "", self.path)
        path = re.sub(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<uid>", path)
        path = re.sub(r"(?<=computedomain-daemon-<uid>-)[0-9a-f]{5}$", "<random>", path)
        path = re.sub(r"namespaces/(\w+)-[0-9a-f]{8}/", r"\1/", path)
        return f"{self.verb} {re.sub(r'-nvdra-[0-9a-f]{8}$', '', path)}"


def call_targets(calls: Iterable[Call], node: TraceNames) -> list[tuple[Call, Target]]:
    """The target of each call; the target of a write is its request."""
    asked: dict[str, TracedRequest] = {}
    return [(call, _target(call, node, asked)) for call in calls]


def _target(call: Call, node: TraceNames, asked: dict[str, TracedRequest]) -> Target:
    found = _CONNECTION.match(call.arguments)
    if found is None or int(found["port"]) != node.api_port or call.name == "connect":
        aim = points.target(call, node)
        return Target(aim.name, aim.is_change and call.name != "connect", aim.path)
    request = TracedRequest.from_call(call, node)
    if request is None:
        before = asked.get(found["fd"])
        name = f"rest of {before}" if before else call.arguments
        return Target(name, is_change=before is None or before.changes_domain)
    asked[found["fd"]] = request
    return Target(
        str(request) if request.changes_domain else "reads and the lease", request.changes_domain
    )
