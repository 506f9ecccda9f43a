"""A plain HTTP server for one address and its routes. Source: docs/design.md, "Settled" (ports)."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Handler

from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)

_SHUTDOWN_S = 1.0
"""How long leaving waits for a request in progress. None of our requests takes longer."""


def parse_address(address: str) -> tuple[str | None, int]:
    """Parse `host:port`, `[IPv6]:port` or `:port`. A host of None means every interface.

    Raises:
        ValueError: The address is not valid.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is not host:port or :port, such as :8080")
    return host.removeprefix("[").removesuffix("]") or None, int(port)


@asynccontextmanager
async def listen(address: str, routes: Sequence[web.RouteDef]) -> AsyncIterator[str]:
    """Serve `routes` on `address`. Yields the address in use, because port 0 selects a free port.

    Other paths are answered with 404 and the list of the routes.

    Raises:
        ValueError: The address is not valid.
        OSError: The address cannot be used; the message names it.
    """
    host, port = parse_address(address)
    application = web.Application()
    application.add_routes([*routes, web.route("*", "/{rest:.*}", _not_found_handler(routes))])
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


def _not_found_handler(routes: Sequence[web.RouteDef]) -> Handler:
    known = sorted({f"{route.method} {route.path}" for route in routes})
    listing = "".join(f"  {line}\n" for line in known)

    async def missing(request: web.Request) -> web.Response:
        text = f"{request.method} {request.path} does not exist. The endpoints are:\n{listing}"
        return web.Response(status=404, text=text)

    return missing
