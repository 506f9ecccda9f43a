# SPDX-License-Identifier: Apache-2.0
"""A name server that knows no name and counts the questions."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

FAMILIES: Final = (socket.AF_INET, socket.AF_INET6, socket.AF_UNSPEC)
LOOKUP: Final = "import socket, sys; socket.getaddrinfo(sys.argv[1], 50000, int(sys.argv[2]))"
"""A Python script that looks up a name (first argument) for a family (second one)."""

_END: Final = b"end"


@contextmanager
def counting(address: str) -> Iterator[list[bytes]]:
    """Answer at port 53 that no name exists, and record the questions."""
    asked: list[bytes] = []
    with socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind((address, 53))

        def serve() -> None:
            while (question := server.recvfrom(512))[0] != _END:
                asked.append(question[0][12:])
                answer = question[0][:2] + b"\x81\x83" + question[0][4:]
                server.sendto(answer, question[1])

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield asked
        finally:
            server.sendto(_END, (address, 53))
            thread.join()
