# SPDX-License-Identifier: Apache-2.0
"""An HTTP server with canned answers, for behaviour that a real API server does not show.

Examples are overload, silence, invalid data from a proxy, and watches that end at once.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from nvdra_testing.control_plane import apiserver


@dataclass
class CannedServer:
    """The server's address and the requests that it received.

    Attributes:
        kubeconfig: Points to the server.
        request_lines: The first line of every request, such as `GET /api HTTP/1.1`.
    """

    kubeconfig: Path
    request_lines: list[str] = field(default_factory=list)


def http_response(status: str, body: str = "{}", **headers: str) -> str:
    """An HTTP answer that closes the connection; `Retry_After="1"` sets a header."""
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = [f"HTTP/1.1 {status}", *lines, f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join([*head, "", body])


@asynccontextmanager
async def serve_responses(directory: Path, *responses: str) -> AsyncIterator[CannedServer]:
    """Send these answers, one per connection; later connections get no answer."""
    port = CannedServer(directory / "answering.kubeconfig")
    left = list(responses)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:  # the test ended before the client sent a request
            writer.close()
            return
        port.request_lines.append(head.partition(b"\r\n")[0].decode())
        with suppress(ConnectionError):  # a client may have enough before the end
            if left:
                writer.write(left.pop(0).encode())
                await writer.drain()
            else:
                await reader.read()
            writer.close()
            await writer.wait_closed()

    async with asyncio.TaskGroup() as group:
        listener = await asyncio.start_server(
            lambda reader, writer: group.create_task(serve(reader, writer)), "127.0.0.1", 0
        )
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        port.kubeconfig.write_text(apiserver.kubeconfig(url, port.kubeconfig, {"token": "t"}))
        yield port
        listener.close()
