# SPDX-License-Identifier: Apache-2.0
"""`/healthz` and `/readyz`: named checks, each with the reason for its failure.

The format is the API server's: `ok`, or with `?verbose` one line per check. A client that accepts
`application/json` gets JSON. The component provides the checks.
"""

from collections.abc import Callable, Mapping

from aiohttp import web
from aiohttp.typedefs import Handler
from nvdra_api import terminal_text

from nvdra_runtime.http import responses
from nvdra_runtime.process.task_failures import TaskFailures


class PassingRemark(str):
    """A remark of a check that passes."""

    __slots__ = ()


Check = Callable[[], str | None]
"""Returns None or a `PassingRemark` if the check passes, otherwise the reason. Must not block."""


def tasks_check(failures: TaskFailures) -> Check:
    """Name the background tasks that have failed unexpectedly of late. It passes.

    The task goes on, and what it does has checks of its own. A probe that failed would let those
    who make a task fail take the component away.
    """
    return lambda: PassingRemark(failures.description)


def routes(
    *, alive: Mapping[str, Check], ready: Mapping[str, Check]
) -> tuple[web.RouteDef, web.RouteDef]:
    """The routes of both probes.

    Args:
        alive: Checks of `/healthz`. A failure means that the pod must be restarted.
        ready: Checks of `/readyz`. A failure means that the component cannot work now.
    """
    return (
        web.get("/healthz", _probe("healthz", alive)),
        web.get("/readyz", _probe("readyz", ready)),
    )


def _probe(name: str, checks: Mapping[str, Check]) -> Handler:
    async def probe(request: web.Request) -> web.Response:
        results = {check: ask() for check, ask in checks.items()}
        is_passed = not any(map(is_failure, results.values()))
        status = 200 if is_passed else 503
        if "application/json" in request.headers.get("Accept", ""):
            return responses.of_document({"ok": is_passed, "checks": results}, status)
        if is_passed and "verbose" not in request.query:
            return responses.of_text("ok")
        return responses.of_text(listing(name, results, is_passed=is_passed), status)

    return probe


def listing(name: str, results: Mapping[str, str | None], *, is_passed: bool) -> str:
    """One line for each check and one for all, as the API server's probes with `?verbose`."""
    lines = [_line(check, result) for check, result in results.items()]
    verdict = f"{name} check {'passed' if is_passed else 'failed'}"
    return "\n".join([*map(terminal_text.line, lines), verdict, ""])


def _line(check: str, result: str | None) -> str:
    if is_failure(result):
        return f"[-]{check} failed: {result}"
    return f"[+]{check} ok: {result}" if result else f"[+]{check} ok"


def is_failure(result: str | None) -> bool:
    """Whether the result of a check is a failure."""
    return bool(result) and not isinstance(result, PassingRemark)
