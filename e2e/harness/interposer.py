"""Between a plugin and the real API server: forwards what is asked, except where told to spoil it.

Every answer that reaches the plugin is the real server's, but for those that a test replaces,
delays or withholds. Plain HTTP on the plugin's side; watches are streamed.
"""

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import apiserver
from aiohttp import web
from apiserver import ApiServer

CLAIMS = r"GET .*/resourceclaims/"
"""Reading one claim."""

_NOT_FORWARDED = {"host", "transfer-encoding", "content-length", "connection"}


@dataclass
class Spoilage:
    """What becomes of the requests that match.

    Attributes:
        match: Regular expression for `<METHOD> <path>?<query>`.
        status: Answered in the server's place; 0 forwards.
        body: With that status.
        headers: Likewise.
        delay_s: Before the request is answered or forwarded; negative: never.
        is_cut: The connection is closed in place of an answer.
        times: How many requests are still spoiled; negative: all.
        met: How many have been.
    """

    match: str
    status: int = 0
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    is_cut: bool = False
    times: int = -1
    met: int = 0


@dataclass
class Interposer:
    """A port that behaves like the API server, most of the time.

    Attributes:
        kubeconfig: Names it as a cluster, with the administrator's token.
        asked: `<METHOD> <path>` of every request, with the loop's time.
        tokens: The bearer token of every request.
        answered: `<METHOD> <path>` of every request whose answer has been sent on.
    """

    server: ApiServer
    kubeconfig: Path
    asked: list[tuple[float, str]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    answered: list[str] = field(default_factory=list)
    port: int = 0
    _spoiled: list[Spoilage] = field(default_factory=list)
    _runner: web.ServerRunner | None = None
    _session: aiohttp.ClientSession | None = None

    @contextlib.contextmanager
    def spoiling(self, match: str, **how: object) -> Iterator[Spoilage]:
        """Spoil what matches while the block runs; see `Spoilage`."""
        spoilage = Spoilage(match, **how)  # type: ignore[arg-type]  # fields by name, a test's words
        self._spoiled.append(spoilage)
        try:
            yield spoilage
        finally:
            self._spoiled.remove(spoilage)

    def count(self, match: str) -> int:
        """How many requests so far match the regular expression."""
        return sum(1 for _, asked in self.asked if re.match(match, asked))

    async def refuse(self) -> None:
        """Nobody listens any more, and connections that stand are closed."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def listen(self) -> None:
        """Listen, on the same port as before."""
        self._runner = web.ServerRunner(web.Server(self._serve), shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        what = f"{request.method} {request.path_qs}"
        self.asked.append((asyncio.get_running_loop().time(), what))
        self.tokens.append(request.headers.get("Authorization", "").removeprefix("Bearer "))
        for spoilage in self._spoiled:
            if spoilage.times and re.match(spoilage.match, what):
                return await self._spoil(spoilage, request)
        return await self._forward(request)

    async def _spoil(self, spoilage: Spoilage, request: web.BaseRequest) -> web.StreamResponse:
        spoilage.times -= 1
        spoilage.met += 1
        await asyncio.sleep(spoilage.delay_s if spoilage.delay_s >= 0 else 3600)
        if spoilage.is_cut:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        if not spoilage.status:
            return await self._forward(request)
        return web.Response(status=spoilage.status, text=spoilage.body, headers=spoilage.headers)

    async def _forward(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._session is not None
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _NOT_FORWARDED}
        body = await request.read()
        async with self._session.request(
            request.method, self.server.url + request.path_qs, headers=headers, data=body or None
        ) as answer:
            passed = {k: v for k, v in answer.headers.items() if k.lower() not in _NOT_FORWARDED}
            response = web.StreamResponse(status=answer.status, headers=passed)
            with contextlib.suppress(ConnectionResetError):  # whoever asked has ended
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                self.answered.append(f"{request.method} {request.path_qs}")
        return response


@contextlib.asynccontextmanager
async def interposed(server: ApiServer, directory: Path) -> AsyncIterator[Interposer]:
    """An interposer before `server`, until the block is left."""
    proxy = Interposer(server, directory / "interposer.kubeconfig")
    context = ssl.create_default_context(cafile=str(server.authority))
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=context, limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
    ) as session:
        proxy._session = session
        await proxy.listen()
        url = f"http://127.0.0.1:{proxy.port}"
        text = apiserver.kubeconfig(url, server.authority, {"token": server.token})
        proxy.kubeconfig.write_text(text)
        try:
            yield proxy
        finally:
            await proxy.refuse()
