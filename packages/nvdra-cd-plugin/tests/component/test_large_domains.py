# SPDX-License-Identifier: Apache-2.0
"""The trace of a domain with many nodes: each member's spans are in a trace of its own."""

from typing import Any

from nvdra_api.ids import DomainUID, NodeName
from nvdra_runtime.telemetry import trace_ids
from nvdra_testing.node.domain_rig import DomainRig
from nvdra_testing.node.rig import flatten_spans


def trace(rig: DomainRig, trace_id: str) -> list[dict[str, Any]]:
    """The spans of a trace of this plugin's process, in order."""
    return list(flatten_spans(rig.process.trace(trace_id)["spans"]))


async def test_a_stuck_claim_of_a_large_domain_leads_to_all_that_its_node_did(
    rig: DomainRig,
) -> None:
    await rig.start()
    domain = rig.create_domain(numNodes=65)
    claim, uid = rig.create_channel_claim(domain), domain["metadata"]["uid"]
    for _ in range(2):
        assert (await rig.refusal(claim)).startswith("DaemonNotReady: ")
    own = trace_ids.member_trace_id(DomainUID(uid), NodeName(rig.node.name))

    wait, *_ = rig.spans(claim, "wait domain")
    assert [link["trace_id"] for link in wait["links"]] == [own]
    names = [span["name"] for span in trace(rig, own)]
    assert names[0] == "member"
    assert sorted(set(names)) == ["label node", "member", "prepare", "wait domain"]
    assert names.count("wait domain") == 2

    whole = trace(rig, uid)
    assert sorted(span["name"] for span in whole) == ["member", "split trace"]
    (split,) = (span for span in whole if span["name"] == "split trace")
    assert [link["trace_id"] for link in split["links"]] == [own]


async def test_the_daemon_of_a_large_domain_is_told_to_write_into_its_members_trace(
    rig: DomainRig,
) -> None:
    await rig.start()
    for nodes, told in ((64, []), (65, ["MEMBER_TRACE=true"])):
        claim = rig.create_daemon_claim(rig.create_domain(numNodes=nodes))
        assert not (await rig.prepare(claim)).error
        edits = rig.claim_cdi_spec(claim)["devices"][0]["containerEdits"]
        assert [each for each in edits["env"] if each.startswith("MEMBER_TRACE")] == told
        assert await rig.unprepare(claim) == ""
