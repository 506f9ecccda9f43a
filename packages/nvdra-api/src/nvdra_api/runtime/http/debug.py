"""`/debug`: traces of the last claims, what the component knows, the verbosity of the log.

For the loopback listener only, because traces name other tenants' claims (design.md, "Settled").
Programs get JSON, browsers a page, terminals text with `?format=text`. Source: spec/tracing.md
§§2, 6.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from nvdra_api.protocol import identity
from nvdra_api.runtime.process.clock import Clock
from nvdra_api.runtime.telemetry import logs, page, recorder, story, waterfall
from nvdra_api.runtime.telemetry.logs import Logging
from nvdra_api.runtime.telemetry.recorder import Recorder, Trace

LOG: Final = logs.logger(__name__)

_FORMATS: Final = ("json", "text", "html")
_PAGE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


Status = Callable[[], Mapping[str, Any]]
"""What the component knows, as a JSON document; answers from memory."""


def routes(
    traces: Recorder, logging_: Logging, clock: Clock, status: Status
) -> Sequence[web.RouteDef]:
    """Everything below `/debug`."""
    return (*_trace_routes(traces, clock), _status_route(status), *_verbosity_routes(logging_))


def _status_route(status: Status) -> web.RouteDef:
    async def show(request: web.Request) -> web.Response:
        del request
        return _json(status())

    return web.get("/debug/status", show)


def _trace_routes(traces: Recorder, clock: Clock) -> Sequence[web.RouteDef]:
    async def list_(request: web.Request) -> web.Response:
        kept = traces.traces()
        lines = [story.summary(trace) for trace in kept]
        return _answer(
            request,
            json_=lambda: [story.listing(line) for line in lines],
            text=lambda: waterfall.index(kept, clock.now()),
            html=lambda: page.index(kept, clock.now()),
        )

    async def show(request: web.Request) -> web.Response:
        trace = _find(traces, request.match_info["id"])
        return _answer(
            request,
            json_=lambda: story.document(trace),
            text=lambda: waterfall.text(trace),
            html=lambda: page.html(trace),
        )

    return web.get("/debug/traces", list_), web.get("/debug/traces/{id}", show)


def _verbosity_routes(logging_: Logging) -> Sequence[web.RouteDef]:
    async def get(request: web.Request) -> web.Response:
        del request
        return web.Response(text=f"{logging_.verbosity}\n")

    async def put(request: web.Request) -> web.Response:
        body = (await request.text()).strip()
        if not body.isascii() or not body.isdigit():
            text = f"{body!r} is no verbosity; send a number: curl -X PUT -d 4 …{request.path}\n"
            raise web.HTTPBadRequest(text=text)
        before = logging_.verbosity
        logging_.set_verbosity(int(body))
        LOG.info("Changed the verbosity of the log", before=before, now=logging_.verbosity)
        return web.Response(text=f"verbosity is {logging_.verbosity}, was {before}\n")

    return web.get("/debug/flags/v", get), web.put("/debug/flags/v", put)


def _find(traces: Recorder, asked: str) -> Trace:
    """The trace by its ID, or by the UID of its claim or domain."""
    trace = traces.trace(identity.trace_id(asked))
    if trace is None:
        kept = len(traces.traces())
        raise web.HTTPNotFound(
            text=f"No trace {asked} here. A trace ID is the UID of a claim or a domain, with or"
            " without dashes."
            f" This process keeps its last {recorder.TRACES} traces in memory ({kept} now), and"
            " they end with it. See /debug/traces for the list; the claim may have been prepared"
            " on another node, the domain have members there.\n"
        )
    return trace


def _answer(
    request: web.Request,
    *,
    json_: Callable[[], object],
    text: Callable[[], str],
    html: Callable[[], str],
) -> web.Response:
    """The form that was asked for by `?format=`, or the one that the client likes."""
    is_browser = "text/html" in request.headers.get("Accept", "")
    wanted = request.query.get("format", "html" if is_browser else "json")
    if wanted == "json":
        return _json(json_())
    if wanted == "text":
        return web.Response(text=text())
    if wanted == "html":
        return web.Response(text=html(), content_type="text/html", headers=_PAGE_HEADERS)
    raise web.HTTPBadRequest(text=f"format={wanted} is not one of {', '.join(_FORMATS)}\n")


def _json(document: object) -> web.Response:
    return web.json_response(text=json.dumps(document, indent=2, ensure_ascii=False) + "\n")
