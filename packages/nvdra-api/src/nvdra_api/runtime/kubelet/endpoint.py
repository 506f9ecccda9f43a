"""A gRPC server at a path of the file system, put there again whenever the path is taken away.

A server binds a hidden name and is moved to its path when it answers. So nobody meets a socket
that does not answer yet, and grpcio, which unlinks the name that it bound whatever is there by
then, never unlinks the socket of a successor (spec/kubelet-dra-protocol.md §8.2).
"""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc

from nvdra_api.runtime.kubelet import sockets

_log = logging.getLogger(__name__)

Prove = Callable[[Path], Awaitable[None]]
"""Shows that the server at a path answers; raises when it does not."""


async def unproven(_: Path) -> None:
    """For a server that need not be asked."""


class Endpoint:
    """One path, and the server behind it.

    Attributes:
        path: Where clients find it.
        problem: Why they do not; empty while they do.
    """

    def __init__(
        self,
        path: Path,
        handlers: tuple[grpc.GenericRpcHandler, ...],
        prove: Prove,
        directory_mode: int,
    ) -> None:
        """Nothing is opened yet.

        Args:
            path: Absolute, at most 107 bytes.
            handlers: The services; shared by all servers that follow one another here.
            prove: Asked before a server is put at the path.
            directory_mode: Of its directory, where that has to be made.
        """
        self.path = path
        self.problem = ""
        self._handlers = handlers
        self._prove = prove
        self._directory_mode = directory_mode
        self._server: grpc.aio.Server | None = None
        self._socket: sockets.SocketID | None = None
        self._moves = asyncio.Lock()

    async def open(self) -> None:
        """Put a server at the path.

        Raises:
            OSError: Another process answers there, something else than a socket is in the way, or
                the system refused.
        """
        async with self._moves:
            await self._open()

    async def close(self, grace_s: float) -> None:
        """Take no new calls, wait so long for those under way, and remove the socket.

        It is removed last: a kubelet that sees it gone drops its connection.
        """
        async with self._moves:
            server, socket = self._server, self._socket
            self._server = self._socket = None
            if server is not None and socket is not None:
                await server.stop(grace=grace_s)
                if sockets.is_ours(self.path, socket):
                    self.path.unlink()

    async def keep(self) -> grpc.aio.Server | None:
        """See that the path still leads to us, and put a new server there when it does not.

        Returns:
            The former server, which answers who is connected to it until somebody stops it.
        """
        async with self._moves:
            if self._socket is None or sockets.is_ours(self.path, self._socket):
                return None
            former = self._server
            try:
                await self._open()
            except (OSError, RuntimeError, grpc.aio.AioRpcError) as error:
                # RuntimeError is what grpcio raises where it cannot bind.
                if str(error) != self.problem:
                    self.problem = str(error)
                    _log.error("a socket is gone and cannot be made again error=%s", error)
                return None
            _log.warning("a socket was removed and is made again socket=%s", self.path)
            return former

    async def _open(self) -> None:
        self.path.parent.mkdir(mode=self._directory_mode, parents=True, exist_ok=True)
        await sockets.claim(self.path)
        await sockets.remove_dead(self.path.parent.glob(self._hidden("???")))
        hidden = self.path.with_name(self._hidden(secrets.token_hex(2)[1:]))
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(self._handlers)
        try:
            server.add_insecure_port(f"unix:{hidden}")
            await server.start()
            socket = sockets.identify(hidden)
            await self._prove(hidden)
            hidden.rename(self.path)
        except BaseException:
            await server.stop(grace=0)
            raise
        self._server, self._socket, self.problem = server, socket, ""

    def _hidden(self, which: str) -> str:
        """A name for a server that does not answer yet, as short as `dra.sock`.

        It tells whose it is, so that what was killed before its move can be found.
        """
        return f".{hashlib.sha256(self.path.name.encode()).hexdigest()[:3]}{which}"


async def keep(endpoint: Endpoint, every_s: float, grace_s: float) -> None:
    """Look after an endpoint for ever; former servers get `grace_s` for their calls."""
    async with asyncio.TaskGroup() as group:
        while True:
            await asyncio.sleep(every_s)
            former = await endpoint.keep()
            if former is not None:
                group.create_task(_stop(former, grace_s), name="former server")


async def _stop(server: grpc.aio.Server, grace_s: float) -> None:
    await server.stop(grace=grace_s)
