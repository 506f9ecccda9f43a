# SPDX-License-Identifier: Apache-2.0
"""nvidia-imex asks for the names of all possible peers: nobody but the hosts file answers."""

import sys

import pytest
from nvdra_testing import name_server, ports
from nvdra_testing.name_server import FAMILIES, LOOKUP
from nvdra_testing.node.imex_daemons import MAX_NODES, Rack

QUIET_S = 4.0
"""Longer than nvidia-imex waits before it asks again for a name that nobody knows."""


def test_a_formed_domain_asks_no_name_server(rack: Rack) -> None:
    address = f"127.{ports.network_number()}.255.53"
    rack.resolver = f"nameserver {address}\nsearch svc.cluster.local cluster.local\n"
    rack.resolver += "options ndots:5 timeout:1 attempts:1\n"
    rack.install_driver("node-a", "node-b")
    with name_server.counting(address) as asked:
        pods = [rack.start_pod(node) for node in ("node-a", "node-b")]
        rack.wait_until(lambda: rack.are_ready("node-a", "node-b"), "both to be Ready")
        rack.wait_until(lambda: rack.are_connected(*pods), "both to be connected")
        asked.clear()
        with pytest.raises(AssertionError, match="waited for a question"):
            rack.wait_until(lambda: asked, "a question", QUIET_S)
        for name in rack.names.all(MAX_NODES):
            for family in FAMILIES:
                found = pods[0].run(sys.executable, "-c", LOOKUP, name, str(int(family)))
                assert (found.returncode, asked) == (0, []), (name, family, found.stderr)
        assert pods[0].run("getent", "ahostsv4", "compute-domain-daemon-9999").returncode != 0
        assert asked, "the name server is the one that is asked"
