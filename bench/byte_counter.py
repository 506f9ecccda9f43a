# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.byte_counter PORT`: forwards TCP connections to a local port and counts bytes.

It prints the port on which it listens. For each line on its standard input it prints how many bytes
have come back from the target since its start, over all connections. TLS passes through unchanged.
It is a separate process, so that it does not delay the clients that it measures.
"""

import asyncio
import sys


class Counter:
    """The bytes that the target has sent."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.received = 0

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a client."""
        back, forth = await asyncio.open_connection("127.0.0.1", self.port)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._copy(reader, forth, counts=False))
            group.create_task(self._copy(back, writer, counts=True))

    async def _copy(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, counts: bool
    ) -> None:
        try:
            while chunk := await source.read(1 << 16):
                self.received += len(chunk) if counts else 0
                sink.write(chunk)
                await sink.drain()
        except ConnectionError:
            pass  # one of the two has ended
        finally:
            sink.close()


async def main(port: int) -> None:
    """Forward until standard input is closed."""
    counter = Counter(port)
    connections: list[asyncio.Task[None]] = []
    lines = asyncio.StreamReader()
    async with asyncio.TaskGroup() as group:
        # Not asyncio's own tasks: it prints the trace of each one that is cancelled at the end.
        server = await asyncio.start_server(
            lambda *streams: connections.append(group.create_task(counter.forward(*streams))),
            "127.0.0.1",
            0,
        )
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
        )
        print(server.sockets[0].getsockname()[1], flush=True)
        while await lines.readline():
            print(counter.received, flush=True)
        server.close()
        for each in connections:
            each.cancel()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
