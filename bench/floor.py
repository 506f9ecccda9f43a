# SPDX-License-Identifier: Apache-2.0
"""The floor: a server that does only what every prepare must do, for comparison with the plugin.

One grpc.aio call on a Unix socket, whose handler reads a claim (one TLS GET on a kept connection)
and commits it (one synced SQLite transaction on a thread). The plugin's interpreter runs it:
`python floor.py SOCKET STATE SERVER AUTHORITY TOKEN`.
"""

import asyncio
import sqlite3
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
import grpc

SERVICE = "bench.Floor"
CLAIM = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/"


class Floor:
    """Both calls. A request is the `<name> <uid>` of a claim, the answer is empty."""

    def __init__(self, session: aiohttp.ClientSession, server: str, state: str) -> None:
        self._session = session
        self._server = server
        self._thread = ThreadPoolExecutor(1)
        self._state = sqlite3.connect(state, isolation_level=None, check_same_thread=False)
        self._state.execute("PRAGMA journal_mode = WAL")
        self._state.execute("PRAGMA synchronous = FULL")
        self._state.execute("CREATE TABLE records (uid TEXT PRIMARY KEY, payload BLOB NOT NULL)")

    async def prepare(self, request: bytes, context: Any) -> bytes:
        """Read the claim and commit it."""
        name, _, uid = request.decode().partition(" ")
        async with self._session.get(f"{self._server}{CLAIM}{name}") as response:
            body = await response.read()
        await self._commit("REPLACE INTO records VALUES (?, ?)", (uid, body))
        return b""

    async def unprepare(self, request: bytes, context: Any) -> bytes:
        """Delete the claim."""
        uid = request.decode().partition(" ")[2]
        await self._commit("DELETE FROM records WHERE uid = ?", (uid,))
        return b""

    async def _commit(self, sql: str, values: tuple[object, ...]) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._state.execute, sql, values)


async def serve(socket: str, state: str, server: str, authority: str, token: str) -> None:
    """Serve until killed."""
    connector = aiohttp.TCPConnector(limit=0, ssl=ssl.create_default_context(cafile=authority))
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        floor = Floor(session, server, state)
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Prepare": grpc.unary_unary_rpc_method_handler(floor.prepare),
            "Unprepare": grpc.unary_unary_rpc_method_handler(floor.unprepare),
        }
        grpc_server = grpc.aio.server()
        grpc_server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, handlers),)
        )
        grpc_server.add_insecure_port(f"unix:{socket}")
        await grpc_server.start()
        await grpc_server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
