# SPDX-License-Identifier: Apache-2.0
"""The command `nvdra-cd-plugin status` beside a running plugin."""

import json
from typing import Any

from nvdra_runtime.telemetry import trace_ids
from nvdra_testing.failures import domain_provocations
from nvdra_testing.node.domain_rig import DomainRig


def status(rig: DomainRig) -> Any:
    return json.loads(rig.status("-o", "json"))


async def test_it_shows_channel_and_daemon_with_domain_and_claims(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.create_domain()
    daemon, claim = await rig.make_daemon_ready(domain), rig.create_channel_claim(domain)
    assert not (await rig.prepare(claim)).error
    told, ring = status(rig), f"{domain['metadata']['namespace']}/ring"
    assert (told["driver"], told["node"]) == ("compute-domain.nvidia.com", rig.node.name)
    assert (told["problems"], told["remarks"]) == ({}, {"fabric": f"clique {rig.clique}"})
    devices = {each["name"]: each for each in told["devices"]}
    assert set(devices) == set(rig.devices())
    for name, holder in {"channel-0": claim, "daemon-0": daemon}.items():
        device = devices[name]
        assert (device["state"], device["claims"]) == ("held", [str(holder)])
        assert (device["domain"], device["clique"]) == (ring, rig.clique)
    assert {each["uid"]: each["devices"] for each in told["claims"]} == {
        daemon.uid: ["daemon-0"],
        claim.uid: ["channel-0"],
    }
    rows = [line.split() for line in rig.status().splitlines()]
    assert ["ready"] in rows
    (header,) = (row for row in rows if "DOMAIN" in row)
    assert "CLIQUE" in header
    (channel,) = (row for row in rows if row[:1] == ["channel-0"])
    assert {ring, rig.clique} <= set(channel)
    assert any(f"{claim.namespace}/{claim.name}" in row for row in rows)

    assert await rig.unprepare(claim) == ""
    assert [each["uid"] for each in status(rig)["claims"]] == [daemon.uid]
    assert {each["name"]: each["state"] for each in status(rig)["devices"]} == {
        "channel-0": "free",
        "daemon-0": "held",
    }


async def test_it_shows_a_claim_that_waits_for_its_daemon(rig: DomainRig) -> None:
    told = await domain_provocations.daemon_not_ready(rig)
    document = status(rig)
    (channel,) = (each for each in document["devices"] if each["name"] == "channel-0")
    assert (channel["state"], channel["claims"]) == ("waits for its daemon", [str(told.claim)])
    (failure,) = document["failures"]
    assert (failure["reason"], failure["ended"]) == ("DaemonNotReady", None)
    assert failure["trace_id"] == trace_ids.trace_id(told.claim.uid)
    assert failure["message"] in told.answer
    assert "DaemonNotReady" in rig.status()
    assert await rig.unprepare(told.claim) == ""
    assert {each["state"] for each in status(rig)["devices"]} == {"free"}


async def test_it_shows_that_the_fabric_is_not_up(rig: DomainRig) -> None:
    await domain_provocations.fabric_error(rig)
    assert "FabricError" in status(rig)["problems"]["fabric"]
    assert "NOT READY, fabric: FabricError" in rig.status()


async def test_it_answers_while_the_api_server_does_not(rig: DomainRig) -> None:
    await rig.start()
    with rig.server.paused():
        assert status(rig)["node"] == rig.node.name
