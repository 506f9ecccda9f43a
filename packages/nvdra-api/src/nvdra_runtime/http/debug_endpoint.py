# SPDX-License-Identifier: Apache-2.0
"""`/debug`: the most recent traces, the component's status, and the verbosity of the log.

It is served on the loopback only, because traces name other tenants' claims (docs/design.md,
"Settled"). Programs get JSON, browsers get HTML, `?format=text` gets text.
Source: docs/reference/tracing.md, "Spans", "Logs".
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from nvdra_api import json_text
from nvdra_api.errors import DriverError

from nvdra_runtime.http import responses
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.telemetry import logs, trace_ids
from nvdra_runtime.telemetry.logs import ConfiguredLogging
from nvdra_runtime.telemetry.recent_traces import recorder, trace_page, trace_view, waterfall
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder

LOG: Final = logs.logger(__name__)

_FORMATS: Final = ("json", "text", "html")
_PAGE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


_LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")

StatusSource = Callable[[], Mapping[str, Any]]
"""Returns the component's status as a JSON document, without blocking."""


Action = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Does what a command asks for in a JSON document, and returns the answer as one.

Raises ValueError if the document is not valid, and `DriverError` if it cannot be done.
"""


def routes(
    traces: TraceRecorder,
    logging_: ConfiguredLogging,
    clock: Clock,
    status: StatusSource,
    actions: Mapping[str, Action] = MappingProxyType({}),
) -> Sequence[web.RouteDef]:
    """The routes below `/debug`. Each action is a POST to its own path; they may change."""
    return (
        *_trace_routes(traces, clock),
        _status_route(status),
        *_verbosity_routes(logging_),
        _action_route(actions),
    )


def refuse_other_hosts(host: str | None) -> Middleware:
    """Refuse requests that a browser sends because a foreign name resolves to the loopback.

    A page can let its own name resolve to the loopback, and then reads what is served there.
    kubectl port-forward, curl and our own commands say localhost or a loopback address.

    Args:
        host: What the endpoint listens on, which is accepted besides; None for every address.
    """
    accepted = {*_LOCAL_HOSTS, host or _LOCAL_HOSTS[0]}

    @web.middleware
    async def refuse(request: web.Request, handler: Handler) -> web.StreamResponse:
        asked = request.headers.get("Host", "")
        if _host_name(asked) in accepted:
            return await handler(request)
        text = (
            f"{asked!r} is not a name of this endpoint: use localhost, 127.0.0.1 or [::1], for "
            "instance after kubectl port-forward\n"
        )
        return responses.of_text(text, HTTPStatus.MISDIRECTED_REQUEST)

    return refuse


def _host_name(header: str) -> str | None:
    """The host of a Host header, in small letters and without port and brackets."""
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError:
        return None


def _action_route(actions: Mapping[str, Action]) -> web.RouteDef:
    async def act(request: web.Request) -> web.Response:
        action = actions.get(request.match_info["action"])
        if action is None:
            text = (
                f"{request.path} does nothing in this process; if it stands by for another instance"
                " of its driver, ask that one (the command status names it)\n"
            )
            return responses.of_text(text, HTTPStatus.NOT_FOUND)
        # A page of another site cannot make a browser send this type to a forwarded port.
        if request.content_type != "application/json":
            text = (
                "send a JSON object: curl -H 'Content-Type: application/json' -d '{}' "
                f"…{request.path}\n"
            )
            return responses.of_text(text, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        try:
            document = dict(json_text.parse(await request.read() or b"{}"))
            return responses.of_document(await action(document))
        except (TypeError, ValueError) as error:
            return responses.of_text(f"{error}\n", HTTPStatus.BAD_REQUEST)
        except DriverError as error:
            text = f"{error.reason}: {error.operator_text}\n"
            return responses.of_text(text, HTTPStatus.CONFLICT)

    return web.post("/debug/{action:.+}", act)


def _status_route(status: StatusSource) -> web.RouteDef:
    async def show(request: web.Request) -> web.Response:
        del request
        return responses.of_document(status())

    return web.get("/debug/status", show)


def _trace_routes(traces: TraceRecorder, clock: Clock) -> Sequence[web.RouteDef]:
    async def list_(request: web.Request) -> web.Response:
        kept = traces.traces()
        lines = [trace_view.summarize(trace) for trace in kept]
        return _respond(
            request,
            json_=lambda: [trace_view.summary_json(line) for line in lines],
            text=lambda: waterfall.render_index(kept, clock.now()),
            html=lambda: trace_page.render_index(kept, clock.now()),
        )

    async def show(request: web.Request) -> web.Response:
        asked = request.match_info["id"]
        trace = traces.trace(trace_ids.trace_id(asked))
        if trace is None:
            return _no_such_trace(traces, asked)
        return _respond(
            request,
            json_=lambda: trace_view.trace_json(trace),
            text=lambda: waterfall.render(trace),
            html=lambda: trace_page.render(trace),
        )

    return web.get("/debug/traces", list_), web.get("/debug/traces/{id}", show)


def _verbosity_routes(logging_: ConfiguredLogging) -> Sequence[web.RouteDef]:
    async def get(request: web.Request) -> web.Response:
        del request
        return responses.of_text(f"{logging_.verbosity}\n")

    async def put(request: web.Request) -> web.Response:
        body = (await request.text()).strip()
        if not body.isascii() or not body.isdigit():
            text = f"{body!r} is not a verbosity; send a number: curl -X PUT -d 4 …{request.path}\n"
            return responses.of_text(text, HTTPStatus.BAD_REQUEST)
        before = logging_.verbosity
        logging_.set_verbosity(int(body))
        LOG.info("Changed the verbosity of the log", before=before, now=logging_.verbosity)
        return responses.of_text(f"verbosity is {logging_.verbosity}, was {before}\n")

    return web.get("/debug/flags/v", get), web.put("/debug/flags/v", put)


def _no_such_trace(traces: TraceRecorder, asked: str) -> web.Response:
    kept = len(traces.traces())
    return responses.of_text(
        f"Trace {asked} is not in memory. A trace ID is the UID of a claim or a domain,"
        " with or without dashes."
        f" This process keeps its last {recorder.MAX_TRACES} traces ({kept} now) until it ends."
        " See /debug/traces for the list. The claim may have been prepared on another node; a"
        " domain has members on several nodes.\n",
        HTTPStatus.NOT_FOUND,
    )


def _respond(
    request: web.Request,
    *,
    json_: Callable[[], object],
    text: Callable[[], str],
    html: Callable[[], str],
) -> web.Response:
    """Respond in the format of `?format=`, or in the one that the client accepts."""
    is_browser = "text/html" in request.headers.get("Accept", "")
    wanted = request.query.get("format", "html" if is_browser else "json")
    if wanted == "json":
        return responses.of_document(json_())
    if wanted == "text":
        return responses.of_text(text())
    if wanted == "html":
        return responses.of_text(html(), content_type="text/html", headers=_PAGE_HEADERS)
    text_ = f"format={wanted} is not one of {', '.join(_FORMATS)}\n"
    return responses.of_text(text_, HTTPStatus.BAD_REQUEST)
