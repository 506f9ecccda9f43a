# SPDX-License-Identifier: Apache-2.0
"""Metrics and log lines of finished API requests. Names of objects are not recorded."""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from nvdra_runtime.process import log_records

LOG = log_records.logger(__name__)
_VERBOSITY: Final = 6
"""Each request is logged for developers only."""


class FinishedRequest(NamedTuple):
    """One finished attempt. `status` is 0 if there was no answer."""

    verb: str
    resource: str
    status: int
    seconds: float


RequestObserver = Callable[[FinishedRequest], None]


class RequestMetrics(Protocol):
    """The metrics that requests are counted in."""

    def api_request(self, verb: str, code: str, seconds: float) -> None:
        """One request; `code` is the status, or the reason for having none."""


def ignore_request(_: FinishedRequest) -> None:
    """Do nothing with the request."""


def count_and_log(metrics: RequestMetrics) -> RequestObserver:
    """Create an observer that measures each request in `metrics` and logs it at verbosity 6."""

    def count(request: FinishedRequest) -> None:
        code = str(request.status or "no answer")
        metrics.api_request(request.verb, code, request.seconds)
        LOG.v(
            _VERBOSITY,
            "API request",
            verb=request.verb,
            resource=request.resource,
            code=code,
            seconds=round(request.seconds, 3),
        )

    return count


def resource_of_path(path: str) -> str:
    """The plural resource name in a path, for a metric label. It is never an object's name.

    `/api/v1/nodes/n` → `nodes`, `/apis/g/v/namespaces/ns/resourceclaims/c` → `resourceclaims`.
    """
    parts = path.partition("?")[0].strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    return rest[0] if rest else "discovery"
