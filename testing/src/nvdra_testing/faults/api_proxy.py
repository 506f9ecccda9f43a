# SPDX-License-Identifier: Apache-2.0
"""A proxy between a component and the real API server that injects faults into chosen requests.

All other requests are forwarded unchanged. The proxy speaks plain HTTP to the component and streams
watches.
"""

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web

from nvdra_testing.control_plane import apiserver
from nvdra_testing.control_plane.apiserver import ApiServer

GET_CLAIM = r"GET .*/resourceclaims/"
"""Requests that read a ResourceClaim."""

_SHUTDOWN_S = 0.1
_ACCEPT_STEPS = 5
"""Of the event loop, from an accepted socket to a connection that a server can close."""

_NOT_FORWARDED = {"host", "transfer-encoding", "content-length", "connection"}


@dataclass
class Fault:
    """What the proxy does with the requests that match.

    Attributes:
        match: Regular expression for `<METHOD> <path>?<query>`.
        status: HTTP status to answer with; 0 forwards the request.
        body: Body of that answer.
        headers: Headers of that answer.
        delay_s: Delay before the request is answered or forwarded; negative: it is never answered.
        closes_connection: Whether the connection is closed instead of answered.
        remaining: How many more requests this applies to; negative: all.
        hits: How many requests it has been applied to.
    """

    match: str
    status: int = 0
    body: str | bytes = ""
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    closes_connection: bool = False
    remaining: int = -1
    hits: int = 0


@dataclass
class FaultyProxy:
    """A port that behaves like the API server, except for injected faults.

    Attributes:
        kubeconfig: Points to the proxy, with the administrator's token.
        requests: Time on the loop's clock and `<METHOD> <path>` of every request.
        tokens: The bearer token of every request.
        forwarded: `<METHOD> <path>` of every request whose answer was passed on completely.
    """

    server: ApiServer
    kubeconfig: Path
    requests: list[tuple[float, str]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    forwarded: list[str] = field(default_factory=list)
    port: int = 0
    _faults: list[Fault] = field(default_factory=list)
    _server: web.Server | None = None
    _runner: web.ServerRunner | None = None
    _session: aiohttp.ClientSession | None = None

    @contextlib.contextmanager
    def inject(
        self,
        match: str,
        *,
        status: int = 0,
        body: str | bytes = "",
        headers: dict[str, str] | None = None,
        delay_s: float = 0.0,
        closes_connection: bool = False,
        times: int = -1,
    ) -> Iterator[Fault]:
        """Inject a fault into matching requests, `times` of them, while the block runs.

        The parameters are the fields of `Fault`.
        """
        fault = Fault(match, status, body, headers or {}, delay_s, closes_connection, times)
        self._faults.append(fault)
        try:
            yield fault
        finally:
            self._faults.remove(fault)

    def count(self, match: str) -> int:
        """The number of requests so far that match the regular expression."""
        return sum(1 for _, asked in self.requests if re.match(match, asked))

    async def stop_listening(self) -> None:
        """Stop listening and close all connections."""
        if self._runner is not None and self._server is not None:
            await self._runner.cleanup()
            for _ in range(_ACCEPT_STEPS):  # one that was accepted just then
                await asyncio.sleep(0)
            await self._server.shutdown(_SHUTDOWN_S)
            self._runner = None

    async def listen(self) -> None:
        """Start listening, on the same port as before."""
        self._server = web.Server(self._serve)
        self._runner = web.ServerRunner(self._server, shutdown_timeout=_SHUTDOWN_S)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        what = f"{request.method} {request.path_qs}"
        self.requests.append((asyncio.get_running_loop().time(), what))
        self.tokens.append(request.headers.get("Authorization", "").removeprefix("Bearer "))
        for fault in self._faults:
            if fault.remaining and re.match(fault.match, what):
                return await self._respond_with_fault(fault, request)
        return await self._forward(request)

    async def _respond_with_fault(
        self, fault: Fault, request: web.BaseRequest
    ) -> web.StreamResponse:
        fault.remaining -= 1
        fault.hits += 1
        await asyncio.sleep(fault.delay_s if fault.delay_s >= 0 else 3600)
        if fault.closes_connection:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        if not fault.status:
            return await self._forward(request)
        if isinstance(fault.body, bytes):
            return web.Response(status=fault.status, body=fault.body, headers=fault.headers)
        return web.Response(status=fault.status, text=fault.body, headers=fault.headers)

    async def _forward(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._session is not None
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _NOT_FORWARDED}
        body = await request.read()
        async with self._session.request(
            request.method, self.server.url + request.path_qs, headers=headers, data=body or None
        ) as answer:
            passed = {k: v for k, v in answer.headers.items() if k.lower() not in _NOT_FORWARDED}
            response = web.StreamResponse(status=answer.status, headers=passed)
            with contextlib.suppress(ConnectionResetError):  # the client has ended
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                self.forwarded.append(f"{request.method} {request.path_qs}")
        return response


@contextlib.asynccontextmanager
async def run_proxy(server: ApiServer, directory: Path) -> AsyncIterator[FaultyProxy]:
    """Run a proxy in front of `server` until the block is left."""
    proxy = FaultyProxy(server, directory / "proxy.kubeconfig")
    context = ssl.create_default_context(cafile=str(server.ca_file))
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=context, limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
    ) as session:
        proxy._session = session
        await proxy.listen()
        url = f"http://127.0.0.1:{proxy.port}"
        text = apiserver.kubeconfig(url, server.ca_file, {"token": server.token})
        proxy.kubeconfig.write_text(text)
        try:
            yield proxy
        finally:
            await proxy.stop_listening()
