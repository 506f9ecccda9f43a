# SPDX-License-Identifier: Apache-2.0
"""The servers whose calls are measured: the plugin, and the floor for comparison."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Protocol

import grpc
from nvdra_api.resource.claims import ClaimRef
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.kubelet.kubelet_client import RegisteredPlugin

from bench import floor

START_S = 20

_Call = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]


class CallTarget(Protocol):
    """A server that is called for one claim at a time, as the kubelet does."""

    async def prepare(self, claim: ClaimRef) -> None: ...

    async def unprepare(self, claim: ClaimRef) -> None: ...


class PluginTarget:
    """Calls the plugin. An error in the answer stops the benchmark."""

    def __init__(self, plugin: RegisteredPlugin) -> None:
        self._plugin = plugin

    async def prepare(self, claim: ClaimRef) -> None:
        answer = (await self._plugin.prepare([claim]))[claim.uid]
        if answer.error or not answer.devices:
            raise RuntimeError(f"claim {claim} was not prepared: {answer}")

    async def unprepare(self, claim: ClaimRef) -> None:
        answer = (await self._plugin.unprepare([claim]))[claim.uid]
        if answer.error:
            raise RuntimeError(f"claim {claim} was not unprepared: {answer}")


class FloorTarget:
    """Calls the floor."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._prepare: _Call = channel.unary_unary(f"/{floor.SERVICE}/Prepare")
        self._unprepare: _Call = channel.unary_unary(f"/{floor.SERVICE}/Unprepare")

    async def prepare(self, claim: ClaimRef) -> None:
        await self._prepare(f"{claim.name} {claim.uid}".encode(), timeout=START_S)

    async def unprepare(self, claim: ClaimRef) -> None:
        await self._unprepare(f"{claim.name} {claim.uid}".encode(), timeout=START_S)


@asynccontextmanager
async def run_floor(python: Path, directory: Path, server: ApiServer) -> AsyncIterator[FloorTarget]:
    """Run the floor as a separate process while the block runs."""
    socket = directory / "floor.sock"
    with _process(python, directory, server, socket):
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            async with asyncio.timeout(START_S):
                await channel.channel_ready()
            yield FloorTarget(channel)


@contextmanager
def _process(python: Path, directory: Path, server: ApiServer, socket: Path) -> Iterator[None]:
    files = (floor.__file__, socket, directory / "floor.sqlite")
    process = subprocess.Popen([python, *files, server.url, server.ca_file, server.token])
    try:
        yield
    finally:
        process.kill()
        process.wait()
