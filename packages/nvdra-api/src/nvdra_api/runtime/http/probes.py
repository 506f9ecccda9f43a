"""`/healthz` and `/readyz`: named checks, each with the reason it fails for.

The form is the API server's: `ok`, or with `?verbose` a line for every check. A client that accepts
`application/json` gets the same as JSON. What is checked is the component's business.
"""

from collections.abc import Callable, Mapping

from aiohttp import web
from aiohttp.typedefs import Handler


class Remark(str):
    """What a check that passes has to say all the same."""

    __slots__ = ()


Check = Callable[[], str | None]
"""Answers at once: None or a `Remark` when all is well, otherwise what is not, in words."""


def routes(
    *, alive: Mapping[str, Check], ready: Mapping[str, Check]
) -> tuple[web.RouteDef, web.RouteDef]:
    """Both probes.

    Args:
        alive: Fails when only a restart can help; a failing one gets the pod restarted.
        ready: Fails as long as the component cannot do its work.
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
            return web.json_response({"ok": is_passed, "checks": results}, status=status)
        if is_passed and "verbose" not in request.query:
            return web.Response(text="ok")
        return web.Response(status=status, text=_listing(name, results, is_passed))

    return probe


def _listing(name: str, results: Mapping[str, str | None], is_passed: bool) -> str:
    lines = [_line(check, said) for check, said in results.items()]
    verdict = f"{name} check {'passed' if is_passed else 'failed'}"
    return "\n".join([*lines, verdict, ""])


def _line(check: str, said: str | None) -> str:
    if is_failure(said):
        return f"[-]{check} failed: {said}"
    return f"[+]{check} ok: {said}" if said else f"[+]{check} ok"


def is_failure(said: str | None) -> bool:
    """Whether what a check says means that it fails."""
    return bool(said) and not isinstance(said, Remark)
