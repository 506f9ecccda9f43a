# SPDX-License-Identifier: Apache-2.0
"""Every component computes the same trace, root and sampling decision from a claim's UID."""

import math
import random
import string
import subprocess
import sys
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.ids import ClaimUID, DomainUID, NodeName, SpanID, TraceID
from nvdra_runtime.telemetry import trace_ids
from nvdra_runtime.telemetry.trace_ids import Link

UID = ClaimUID("3f0c1a52-7c1b-4d0e-8a55-0123456789ab")
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


def uids(count: int, seed: int) -> list[str]:
    source = random.Random(seed)
    return [str(uuid.UUID(int=source.getrandbits(128), version=4)) for _ in range(count)]


def test_the_trace_id_is_the_uid_without_dashes() -> None:
    assert trace_ids.trace_id(UID) == "3f0c1a527c1b4d0e8a550123456789ab"


def test_a_uid_that_is_no_uuid_still_has_a_trace() -> None:
    odd = [trace_ids.trace_id(uid) for uid in ("claim-1", "claim-2", "", "0" * 32)]

    assert len(set(odd)) == 4
    assert all(len(trace) == 32 and int(trace, 16) for trace in odd)


def test_the_root_span_of_a_claim_is_the_same_on_every_machine() -> None:
    # From `printf claim/<uid>/node-a | b2sum -l 64`.
    assert trace_ids.claim_root_span_id(UID, NodeName("node-a")) == "e2811ad09a137439"


def test_each_node_has_its_own_root() -> None:
    roots = {trace_ids.claim_root_span_id(UID, NodeName(node)) for node in ("node-a", "node-b", "")}
    assert len(roots) == 3


def test_the_spans_of_a_domain_can_be_named_by_each_of_its_processes() -> None:
    uid = DomainUID("11111111-2222-3333-4444-555555555555")
    # From `printf domain/<uid> | b2sum -l 64` and `printf member/<uid>/node-a | b2sum -l 64`.
    assert trace_ids.domain_root_span_id(uid) == "51109802b183ea78"
    assert trace_ids.member_span_id(uid, NodeName("node-a")) == "aedf63bb4e5f20cd"
    assert trace_ids.member_span_id(uid, NodeName("node-b")) != trace_ids.member_span_id(
        uid, NodeName("node-a")
    )


@given(st.uuids(), st.text(), st.floats(0, 1))
def test_the_trace_of_a_member_is_sampled_with_its_domains(
    uuid_: uuid.UUID, node: str, ratio: float
) -> None:
    uid = DomainUID(str(uuid_))
    trace, own = trace_ids.trace_id(uid), trace_ids.member_trace_id(uid, NodeName(node))

    assert trace_ids.is_sampled(own, ratio) == trace_ids.is_sampled(trace, ratio)
    assert trace_ids.trace_id(own) == own
    assert own == trace[:16] + trace_ids.member_span_id(uid, NodeName(node))


@given(st.text())
def test_a_span_id_is_sixteen_hex_digits_and_never_zero(key: str) -> None:
    span = trace_ids.span_id(key)

    assert len(span) == 16
    assert set(span) <= set(string.hexdigits.lower())
    assert int(span, 16) != 0


@given(st.uuids(), st.floats(0, 1), st.floats(0, 1))
def test_a_trace_that_a_low_ratio_samples_is_sampled_by_every_higher_one(
    uid: uuid.UUID, one: float, other: float
) -> None:
    trace = trace_ids.trace_id(str(uid))
    low, high = sorted((one, other))

    assert trace_ids.is_sampled(trace, high) >= trace_ids.is_sampled(trace, low)
    assert trace_ids.is_sampled(trace, 1.0)
    assert not trace_ids.is_sampled(trace, 0.0)


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.25, 0.5, 0.9])
def test_the_fixed_bits_of_a_uuid_do_not_bias_sampling(ratio: float) -> None:
    count = 20_000
    sampled = sum(trace_ids.is_sampled(trace_ids.trace_id(u), ratio) for u in uids(count, seed=7))

    four_sigma = 4 * math.sqrt(count * ratio * (1 - ratio))
    assert abs(sampled - count * ratio) < four_sigma


def test_two_processes_sample_the_same_traces() -> None:
    program = (
        "import sys; from nvdra_runtime.telemetry import trace_ids;"
        "print([trace_ids.is_sampled(trace_ids.trace_id(u), 0.5) for u in sys.argv[1:]])"
    )
    some = uids(64, seed=11)
    output = subprocess.check_output([sys.executable, "-c", program, *some], text=True)

    here = [trace_ids.is_sampled(trace_ids.trace_id(uid), 0.5) for uid in some]
    assert output.strip() == str(here)
    assert set(here) == {True, False}


def test_an_inbound_traceparent_becomes_a_link_and_no_more() -> None:
    link = trace_ids.link_from_traceparent(f"00-{TRACE}-{SPAN}-01")

    assert link == Link(TraceID(TRACE), SpanID(SPAN), "inbound")


def test_a_traceparent_of_a_later_version_is_read_as_far_as_we_know_it() -> None:
    assert (
        trace_ids.link_from_traceparent(f"cc-{TRACE}-{SPAN}-01-what-the-future-holds") is not None
    )


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "hello",
        f"00-{TRACE}-{SPAN}",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n\x00",
    ],
)
def test_what_is_no_valid_traceparent_links_nowhere(text: str | None) -> None:
    assert trace_ids.link_from_traceparent(text) is None
