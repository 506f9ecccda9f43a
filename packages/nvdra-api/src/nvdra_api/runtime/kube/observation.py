"""What is known of a finished request, for metrics and the log; names of objects are not."""

import logging
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

_log = logging.getLogger(__name__)
_LEVEL: Final = logging.INFO - 6
"""Of a line for each request: for developers."""


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
    """Each request is counted and measured there, and logged from verbosity 6 on."""

    def count(request: Request) -> None:
        code = str(request.status or "no answer")
        metrics.api_request(request.verb, code, request.seconds)
        if _log.isEnabledFor(_LEVEL):
            verb, resource, seconds = request.verb, request.resource, request.seconds
            line = "asked the API server verb=%s resource=%s code=%s seconds=%.3f"
            _log.log(_LEVEL, line, verb, resource, code, seconds)

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
