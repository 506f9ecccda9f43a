"""What is known of a finished request, for metrics; names of objects are not."""

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Request(NamedTuple):
    """One finished attempt. `status` is 0 where no answer came."""

    verb: str
    resource: str
    status: int
    seconds: float


Observe = Callable[[Request], None]


class Counting(Protocol):
    """Metrics of requests."""

    def api_request(self, verb: str, code: str, seconds: float) -> None:
        """One request; `code` is the status, or what kept it from having one."""


def unobserved(_: Request) -> None:
    """For who keeps no metrics."""


def counted(metrics: Counting) -> Observe:
    """Each request is counted and measured there."""

    def count(request: Request) -> None:
        metrics.api_request(request.verb, str(request.status or "no answer"), request.seconds)

    return count


def resource(target: str) -> str:
    """The plural in a path, for a label: never a name.

    `/api/v1/nodes/n` → `nodes`, `/apis/g/v/namespaces/ns/resourceclaims/c` → `resourceclaims`.
    """
    parts = target.partition("?")[0].strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    return rest[0] if rest else "discovery"
