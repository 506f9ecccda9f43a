# SPDX-License-Identifier: Apache-2.0
"""A gRPC server on a Unix socket, which is created again whenever the socket is removed.

The server binds a hidden name, and the socket is renamed to its path when the server responds. So
no client finds a socket that does not respond yet. When grpcio stops, it unlinks the name that it
bound; because of the renaming, it never unlinks the socket of a successor
(docs/reference/kubelet-plugin.md, "Socket files").
"""

import asyncio
import errno
import hashlib
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import grpc

from nvdra_runtime.kubeletplugin import sockets
from nvdra_runtime.kubeletplugin.prompt_server import PromptServer
from nvdra_runtime.process.background_tasks import BackgroundTasks
from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)

_OPEN_ERRORS = (OSError, RuntimeError, grpc.aio.AioRpcError)
"""Why a socket may not be created. grpcio raises RuntimeError if it cannot bind."""

VerifyServer = Callable[[Path], Awaitable[None]]
"""Verifies that the server at a path responds; raises if it does not."""


async def skip_verification(_: Path) -> None:
    """Do not verify the server."""


class SocketServer:
    """A server on one path.

    Attributes:
        path: The path of the socket.
        problem: Why clients cannot connect; empty if they can.
    """

    def __init__(
        self,
        path: Path,
        handlers: tuple[grpc.GenericRpcHandler, ...],
        verify: VerifyServer,
        directory_mode: int,
    ) -> None:
        """Create a server without opening it.

        Args:
            path: An absolute path of at most 107 bytes.
            handlers: The services.
            verify: Called before the socket is renamed to its path.
            directory_mode: Mode of the directory, if it has to be created.
        """
        self.path = path
        self.problem = ""
        self._handlers = handlers
        self._prove = verify
        self._directory_mode = directory_mode
        self._server: PromptServer | None = None
        self._socket: sockets.SocketID | None = None
        self._is_wanted = False
        self._moves = asyncio.Lock()

    async def open(self) -> None:
        """Serve on the path. If the socket cannot be created, `restore` tries again.

        Raises:
            OSError: Another process serves there, or a file that is no socket is there.
        """
        async with self._moves:
            self._is_wanted = True
            try:
                await self._open()
            except _OPEN_ERRORS as error:
                self._report(error)
                if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                    raise

    async def close(self, grace_s: float) -> None:
        """Accept no new calls, wait for those in progress, and remove the socket.

        The socket is removed last, because the kubelet then closes its connection.
        """
        async with self._moves:
            server, socket = self._server, self._socket
            self._server = self._socket = None
            self._is_wanted = False
            if server is not None and socket is not None:
                await server.stop(grace_s)
                try:
                    if sockets.is_ours(self.path, socket):
                        self.path.unlink()
                except OSError as error:
                    LOG.warning("A socket cannot be removed", error=str(error))

    async def restore(self) -> PromptServer | None:
        """Start a new server if the socket was removed or replaced, or was never created.

        Returns:
            The former server, which continues to serve its connections until it is stopped.
        """
        async with self._moves:
            if not self._is_wanted:
                return None
            former = self._server
            try:
                if self._socket is not None and sockets.is_ours(self.path, self._socket):
                    self.problem = ""
                    return None
                await self._open()
            except _OPEN_ERRORS as error:
                self._report(error)
                return None
            LOG.warning("A socket was missing and is created again", socket=str(self.path))
            return former

    def _report(self, error: Exception) -> None:
        """Log a problem, unless it was the last one."""
        if str(error) != self.problem:
            self.problem = str(error)
            text = "A socket is missing and cannot be created"
            LOG.error(text, error=self.problem)

    async def _open(self) -> None:
        self.path.parent.mkdir(mode=self._directory_mode, parents=True, exist_ok=True)
        await sockets.check_available(self.path)
        await sockets.remove_dead(self.path.parent.glob(self._temporary_name("???")))
        hidden = self.path.with_name(self._temporary_name(secrets.token_hex(2)[1:]))
        server = PromptServer(self._handlers)
        try:
            await server.start(f"unix:{hidden}")
            socket = sockets.restrict_and_identify(hidden)
            await self._prove(hidden)
            hidden.rename(self.path)
        except BaseException:
            await server.stop(0)
            raise
        self._server, self._socket, self.problem = server, socket, ""

    def _temporary_name(self, which: str) -> str:
        """A name for the socket before it is renamed, as short as `dra.sock`.

        It is derived from the path, so that sockets of processes that were killed can be found.
        """
        return f".{hashlib.sha256(self.path.name.encode()).hexdigest()[:3]}{which}"


async def run_restore_loop(server: SocketServer, interval_s: float, grace_s: float) -> None:
    """Restore the socket whenever it is removed. Former servers get `grace_s` for their calls."""
    async with BackgroundTasks() as tasks:
        while True:
            await asyncio.sleep(interval_s)
            former = await server.restore()
            if former is not None:
                tasks.start_once("former socket", partial(former.stop, grace_s))
