"""A port with canned HTTP answers, where a real API server cannot be brought to misbehave.

Overload, silence, nonsense from a proxy, watches that end at once: nothing here knows Kubernetes.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import apiserver


@dataclass
class Port:
    """Where it answers, and what it was asked.

    Attributes:
        kubeconfig: Names it as a cluster.
        asked: The first line of every request, such as `GET /api HTTP/1.1`.
    """

    kubeconfig: Path
    asked: list[str] = field(default_factory=list)


def http(status: str, body: str = "{}", **headers: str) -> str:
    """An answer after which the connection is closed; `Retry_After="1"` is a header."""
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = [f"HTTP/1.1 {status}", *lines, f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join([*head, "", body])


@asynccontextmanager
async def answering(directory: Path, *answers: str) -> AsyncIterator[Port]:
    """Give these answers, one per connection, then keep silent until the other side hangs up."""
    port = Port(directory / "answering.kubeconfig")
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:  # the test ended before the client had asked
            writer.close()
            return
        port.asked.append(head.partition(b"\r\n")[0].decode())
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
