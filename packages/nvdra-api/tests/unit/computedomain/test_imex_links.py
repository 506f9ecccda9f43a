# SPDX-License-Identifier: Apache-2.0
"""What one node's IMEX says of its connections, as it is published for the real program."""

import contextlib
import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.ids import CliqueID, NodeName
from nvdra_runtime.computedomain import imex_links
from nvdra_runtime.computedomain.imex_links import DomainHosts, ImexLinks, UnreadableAnswerError

HOSTS = [f"compute-domain-daemon-{number:04d}" for number in range(4)]
MEMBERS = {HOSTS[1]: NodeName("node-b"), HOSTS[2]: NodeName("node-c")}
DAEMON = "computedomain-daemon-5f4dcc3b"
OTHER = "computedomain-daemon-0a0a0a0a-x7k2p"
DOMAIN = DomainHosts({HOSTS[0], "10.4.0.1"}, MEMBERS, HOSTS[:3], DAEMON)


def answer(
    own: Mapping[int, str],
    statuses: Mapping[int, str] = {},
    status: str = "READY",
    names: Mapping[int, str] = {},
) -> bytes:
    """The answer of node 0 of four, with these links and nodes; the last place has no member."""
    words = {0: "CONNECTED", 1: "CONNECTED", 2: "CONNECTED", 3: "NEVER_CONNECTED", **own}
    states = {0: status, 1: "READY", 2: "READY", 3: "UNAVAILABLE", **statuses}
    nodes = {
        str(number): {
            "status": states[number],
            "host": host,
            "connections": {
                str(to): {"host": HOSTS[to], "status": word if number == 0 else "INVALID"}
                for to, word in words.items()
            },
            "version": "" if states[number] == "UNAVAILABLE" else "580.95.05",
            "hostName": names.get(number, "N/A"),
        }
        for number, host in enumerate(HOSTS)
    }
    made = {"nodes": nodes, "timestamp": "9/4/2026 00:00:00.000", "status": "DEGRADED"}
    return json.dumps(made).encode()


@pytest.mark.parametrize(
    ("output", "broken"),
    [
        (answer({}), {}),
        (answer({1: "VERSION_MISMATCH"}), {"node-b": "VERSION_MISMATCH"}),
        (
            answer({1: "NEVER_CONNECTED", 2: "RECOVERING"}),
            {"node-b": "NEVER_CONNECTED", "node-c": "RECOVERING"},
        ),
        (answer({}, {2: "UNAVAILABLE"}), {"node-c": "UNAVAILABLE"}),
        (answer({2: "!M!"}, {2: "UNAVAILABLE"}), {"node-c": "!M!"}),
        (b"a warning on standard error\n" + answer({}), {}),
    ],
)
def test_members_without_a_connection_are_named_with_imexs_word(
    output: bytes, broken: dict[NodeName, str]
) -> None:
    assert imex_links.read_answer(output, DOMAIN) == ImexLinks(broken)


def test_a_node_that_says_something_else_than_ready_knows_no_connections() -> None:
    output = answer({1: "DISCONNECTED"}, status="UNAVAILABLE")
    read = imex_links.read_answer(output, DOMAIN)
    assert read == ImexLinks(failure="nvidia-imex-ctl -N says UNAVAILABLE of it")


@pytest.mark.parametrize("name", ["N/A", "", f"{DAEMON}-x7k2p", "node-b.example.com"])
def test_a_members_host_may_have_any_name_but_that_of_another_domains_daemon(name: str) -> None:
    output = answer({}, names={1: name, 2: OTHER})
    assert imex_links.read_answer(output, DOMAIN) == ImexLinks(strangers={HOSTS[2]: OTHER})


def test_a_place_without_a_member_to_which_there_is_a_connection_has_a_stranger() -> None:
    output = answer({3: "CONNECTED"}, names={3: OTHER})
    assert imex_links.read_answer(output, DOMAIN) == ImexLinks(strangers={HOSTS[3]: ""})
    assert imex_links.read_answer(answer({3: "RECOVERING"}), DOMAIN).are_well


def test_a_host_of_another_domain_without_a_connection_is_no_stranger() -> None:
    output = answer({1: "NODE_MAP_MISMATCH"}, names={1: OTHER})
    mismatch = ImexLinks({NodeName("node-b"): "NODE_MAP_MISMATCH"})
    assert imex_links.read_answer(output, DOMAIN) == mismatch


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"READY\n",
        b"[]",
        b"{}",
        b'{"nodes": []}',
        b'{"nodes": {"0": 1}}',
        b'{"nodes": {}}',
        b'{"a":' * 100_000,
    ],
)
def test_anything_else_is_unreadable(output: bytes) -> None:
    with pytest.raises(UnreadableAnswerError):
        imex_links.read_answer(output, DOMAIN)


@given(st.binary(max_size=200) | st.binary(max_size=80).map(lambda junk: answer({})[:300] + junk))
def test_whatever_is_printed_it_is_read_or_unreadable(output: bytes) -> None:
    with contextlib.suppress(UnreadableAnswerError):
        imex_links.read_answer(output, DOMAIN)


def test_what_was_wrong_only_once_is_not_lasting() -> None:
    first = ImexLinks({NodeName("node-b"): "RECOVERING", NodeName("node-c"): "RECOVERING"})
    then = ImexLinks({NodeName("node-c"): "DISCONNECTED", NodeName("node-d"): "RECOVERING"})
    assert imex_links.lasting(first, then) == ImexLinks({NodeName("node-c"): "DISCONNECTED"})
    assert imex_links.lasting(ImexLinks(), then) == ImexLinks()
    hangs = ImexLinks(failure="no answer")
    assert imex_links.lasting(first, hangs) == ImexLinks()
    assert imex_links.lasting(hangs, hangs) == hangs


def test_another_domains_daemon_is_reported_at_once_and_a_former_member_if_it_stays() -> None:
    first, left = ImexLinks(strangers={"a": OTHER}), ImexLinks(strangers={"b": ""})
    assert imex_links.lasting(ImexLinks(), first) == first
    assert imex_links.lasting(ImexLinks(), left) == ImexLinks()
    assert imex_links.lasting(left, left) == left


def test_an_annotation_does_not_say_which_domain_a_stranger_is_of() -> None:
    value = imex_links.encode(ImexLinks(strangers={"a": OTHER, "b": ""}))
    assert value == '{"strangers":["a","b"]}'
    assert imex_links.decode(value) == ImexLinks(strangers={"a": "", "b": ""})


links = st.builds(
    ImexLinks,
    st.dictionaries(
        st.text(min_size=1, max_size=20).map(NodeName), st.text(max_size=20), max_size=8
    ),
    st.integers(0, 300),
    st.text(max_size=50),
    st.dictionaries(st.text(max_size=20), st.just(""), max_size=8),
    st.none() | st.text(max_size=50).map(CliqueID),
)


@given(links)
def test_an_annotation_says_what_was_written_to_it(made: ImexLinks) -> None:
    assert imex_links.decode(imex_links.encode(made)) == made


def test_many_nodes_are_counted_and_a_few_of_them_named() -> None:
    made = ImexLinks({NodeName(f"node-{number:03d}"): "INVALID" for number in range(256)})
    value = imex_links.encode(made)
    assert value is not None
    assert len(value) < 2048
    read = imex_links.decode(value)
    assert (len(read.broken), read.others) == (32, 224)


@pytest.mark.parametrize(
    "value",
    [
        *(None, "", "x", "[]", "1", "[" * 100_000),
        *('{"broken": 1}', '{"strangers": 1}', '{"others": "x"}', '{"others": Infinity}'),
    ],
)
def test_a_value_that_nobody_of_us_wrote_says_nothing(value: str | None) -> None:
    assert imex_links.decode(value).are_well
