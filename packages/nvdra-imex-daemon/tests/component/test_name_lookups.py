"""nvidia-imex asks for the names of all possible peers: nobody but the hosts file answers."""

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator

import pytest
from nvdra_testing import ports
from nvdra_testing.node.imex_daemons import MAX_NODES, Rack

QUIET_S = 4.0
"""Longer than nvidia-imex waits before it asks again for a name that nobody knows."""
FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNSPEC)
LOOKUP = "import socket, sys; socket.getaddrinfo(sys.argv[1], 50000, int(sys.argv[2]))"


@contextlib.contextmanager
def counting_name_server(address: str) -> Iterator[list[bytes]]:
    """Answer that no name exists, and record the questions."""
    asked: list[bytes] = []
    with socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind((address, 53))

        def serve() -> None:
            while (question := server.recvfrom(512))[0] != b"end":
                asked.append(question[0][12:])
                answer = question[0][:2] + b"\x81\x83" + question[0][4:]
                server.sendto(answer, question[1])

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield asked
        finally:
            server.sendto(b"end", (address, 53))
            thread.join()


def test_a_formed_domain_asks_no_name_server(rack: Rack) -> None:
    address = f"127.65.{ports.xdist_worker()}.53"
    rack.resolver = f"nameserver {address}\nsearch svc.cluster.local cluster.local\n"
    rack.resolver += "options ndots:5 timeout:1 attempts:1\n"
    rack.install_driver("node-a", "node-b")
    with counting_name_server(address) as asked:
        pods = [rack.start_pod(node) for node in ("node-a", "node-b")]
        rack.wait_until(lambda: rack.are_ready("node-a", "node-b"), "both to be Ready")
        rack.wait_until(lambda: rack.are_connected(*pods), "both to be connected")
        asked.clear()
        with pytest.raises(AssertionError, match="waited for a question"):
            rack.wait_until(lambda: asked, "a question", QUIET_S)
        for name in (f"compute-domain-daemon-{index:04d}" for index in range(MAX_NODES)):
            for family in FAMILIES:
                found = pods[0].run(sys.executable, "-c", LOOKUP, name, str(int(family)))
                assert (found.returncode, asked) == (0, []), (name, family, found.stderr)
        assert pods[0].run("getent", "ahostsv4", "compute-domain-daemon-9999").returncode != 0
        assert asked, "the name server is the one that is asked"
