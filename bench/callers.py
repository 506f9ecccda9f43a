"""Who answers the calls that are measured: the plugin, or the bare floor in its place."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Protocol

import grpc
from apiserver import ApiServer
from kubelet_client import Plugin
from nvdra_api.types.claims import ClaimRef

from bench import floor

START_S = 20

_Call = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]


class Caller(Protocol):
    """One call for one claim, as the kubelet makes it."""

    async def prepare(self, claim: ClaimRef) -> None: ...

    async def unprepare(self, claim: ClaimRef) -> None: ...


class PluginCaller:
    """Calls the plugin; an answer that is an error stops the measurement."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin

    async def prepare(self, claim: ClaimRef) -> None:
        answer = (await self._plugin.prepare([claim]))[claim.uid]
        if answer.error or not answer.devices:
            raise RuntimeError(f"claim {claim} was not prepared: {answer}")

    async def unprepare(self, claim: ClaimRef) -> None:
        answer = (await self._plugin.unprepare([claim]))[claim.uid]
        if answer.error:
            raise RuntimeError(f"claim {claim} was not unprepared: {answer}")


class FloorCaller:
    """Calls the floor."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._prepare: _Call = channel.unary_unary(f"/{floor.SERVICE}/Prepare")
        self._unprepare: _Call = channel.unary_unary(f"/{floor.SERVICE}/Unprepare")

    async def prepare(self, claim: ClaimRef) -> None:
        await self._prepare(f"{claim.name} {claim.uid}".encode(), timeout=START_S)

    async def unprepare(self, claim: ClaimRef) -> None:
        await self._unprepare(f"{claim.name} {claim.uid}".encode(), timeout=START_S)


@asynccontextmanager
async def running_floor(
    python: Path, directory: Path, server: ApiServer
) -> AsyncIterator[FloorCaller]:
    """The floor as a process of its own, until the block is left."""
    socket = directory / "floor.sock"
    with _process(python, directory, server, socket):
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            async with asyncio.timeout(START_S):
                await channel.channel_ready()
            yield FloorCaller(channel)


@contextmanager
def _process(python: Path, directory: Path, server: ApiServer, socket: Path) -> Iterator[None]:
    files = (floor.__file__, socket, directory / "floor.sqlite")
    process = subprocess.Popen([python, *files, server.url, server.authority, server.token])
    try:
        yield
    finally:
        process.kill()
        process.wait()
