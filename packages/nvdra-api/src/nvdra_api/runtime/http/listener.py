"""A port of the component: an address, and the routes that answer there.

What is served is `probes`, `exposition` and `debug`, over plain HTTP.
Source: design.md, "Settled" (ports).
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Handler

from nvdra_api.runtime.telemetry import logs

LOG = logs.logger(__name__)

_SHUTDOWN_S = 1.0
"""How long leaving waits for a request in progress; none of ours takes longer."""


def parse(address: str) -> tuple[str | None, int]:
    """Host and port of `host:port`, `[v6]:port` or `:port`; a host of None is every interface.

    Raises:
        ValueError: Not of that form; the message says which is.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is no address: host:port or :port, such as :8080")
    return host.removeprefix("[").removesuffix("]") or None, int(port)


@asynccontextmanager
async def listening(address: str, routes: Sequence[web.RouteDef]) -> AsyncIterator[str]:
    """Serve `routes` on `address`; gives the address in use (`:0` picks a port).

    Whoever asks for anything else is told what there is.

    Raises:
        ValueError: The address cannot be read.
        OSError: It cannot be had; the message names it.
    """
    host, port = parse(address)
    application = web.Application()
    application.add_routes([*routes, web.route("*", "/{rest:.*}", _missing(routes))])
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=_SHUTDOWN_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        bound_host, bound_port = runner.addresses[0][:2]
        shown_host = f"[{bound_host}]" if ":" in bound_host else bound_host
        LOG.v(1, "Listening for HTTP", address=f"{shown_host}:{bound_port}")
        yield f"{shown_host}:{bound_port}"
    finally:
        await runner.cleanup()


def _missing(routes: Sequence[web.RouteDef]) -> Handler:
    known = sorted({f"{route.method} {route.path}" for route in routes})
    listing = "".join(f"  {line}\n" for line in known)

    async def missing(request: web.Request) -> web.Response:
        text = f"There is no {request.method} {request.path} here. There is:\n{listing}"
        return web.Response(status=404, text=text)

    return missing
