# SPDX-License-Identifier: Apache-2.0
"""The block of peers in a hosts file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.ids import DomainUID, NodeName
from nvdra_imex_daemon.configuration import dns_names, hosts_file
from nvdra_imex_daemon.configuration.dns_names import SHARED
from nvdra_imex_daemon.configuration.peers import Peer

KUBELETS = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n10.4.1.7\tdaemon-x7k2p\n"


def peer(index: int, ip: str) -> Peer:
    return Peer(index, NodeName(f"node-{index}"), ip, is_ready=True)


TWO = (peer(0, "10.4.1.7"), peer(1, "10.4.2.9"))
BLOCK = """\
# Compute Domain Daemon mappings
10.4.1.7\tcompute-domain-daemon-0000
::ffff:10.4.1.7\tcompute-domain-daemon-0000
10.4.2.9\tcompute-domain-daemon-0001
::ffff:10.4.2.9\tcompute-domain-daemon-0001
127.255.255.255\tcompute-domain-daemon-0002
::ffff:127.255.255.255\tcompute-domain-daemon-0002
# End of Compute Domain Daemon mappings
"""
PLACES = 3
UID = DomainUID("5f4dcc3b-5aa7-4d83-8f52-000000000001")


def test_the_peers_are_in_one_block_at_the_end() -> None:
    assert hosts_file.with_peers(KUBELETS, TWO, SHARED, PLACES) == KUBELETS + BLOCK


def test_a_missing_newline_at_the_end_is_added() -> None:
    named = hosts_file.with_peers("127.0.0.1 localhost", TWO, SHARED, PLACES)
    assert named == "127.0.0.1 localhost\n" + BLOCK


def test_lines_of_the_reference_driver_are_replaced() -> None:
    theirs = (
        f"{KUBELETS}\n# Compute Domain Daemon mappings\n10.4.7.7\tcompute-domain-daemon-0003\n"
        "10.4.3.3\tsomething-else\n"
    )
    named = hosts_file.with_peers(theirs, TWO, SHARED, PLACES)
    assert named == f"{KUBELETS}\n10.4.3.3\tsomething-else\n{BLOCK}"


def test_the_name_of_a_departed_member_leads_nowhere_and_nothing_else_changes() -> None:
    named = hosts_file.with_peers(KUBELETS + BLOCK, TWO[:1], SHARED, PLACES)
    assert named == KUBELETS + BLOCK.replace("10.4.2.9", "127.255.255.255")


def test_a_domain_of_its_own_names_replaces_the_shared_ones() -> None:
    names = dns_names.of_domain(UID, "domain")
    named = hosts_file.with_peers(KUBELETS + BLOCK, TWO, names, PLACES)
    assert named == KUBELETS + BLOCK.replace(dns_names.PREFIX, names.prefix)


def test_a_peer_with_an_address_of_ip_version_6_has_none_of_version_4() -> None:
    named = hosts_file.with_peers("", (peer(0, "fd00::5"),), SHARED, 1).splitlines()
    assert named[1:-1] == [
        "fd00::5\tcompute-domain-daemon-0000",
        "127.255.255.255\tcompute-domain-daemon-0000",
    ]


lines = st.lists(
    st.text(st.characters(exclude_characters="\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")), max_size=8
)
rosters = st.lists(st.integers(min_value=0, max_value=17), unique=True, max_size=6).map(
    lambda indexes: tuple(peer(index, f"10.4.0.{index + 1}") for index in sorted(indexes))
)


@given(lines, rosters, rosters)
def test_writing_twice_changes_nothing_and_keeps_other_lines(
    kept: list[str], first: tuple[Peer, ...], second: tuple[Peer, ...]
) -> None:
    text = "".join(f"{line}\n" for line in kept)
    once = hosts_file.with_peers(text, first, SHARED, 18)
    assert once.startswith(text)
    assert hosts_file.with_peers(once, first, SHARED, 18) == once
    assert hosts_file.with_peers(once, second, SHARED, 18) == hosts_file.with_peers(
        text, second, SHARED, 18
    )


@pytest.mark.parametrize("text", ["a\r\nb\r\n", "a\x0cb\n", "\ufeffx\n"])
def test_unusual_characters_are_kept(text: str) -> None:
    assert hosts_file.with_peers(text, (), SHARED, 1).startswith(text)
