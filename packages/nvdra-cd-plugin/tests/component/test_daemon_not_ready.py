# SPDX-License-Identifier: Apache-2.0
"""DaemonNotReady names what this node's daemon lacks, two seconds before the kubelet's deadline."""

import time

from nvdra_api.resource.claims import ClaimRef
from nvdra_testing.node.domain_rig import DomainRig

SHORT_S = 5.0


async def lacks(rig: DomainRig, claim: ClaimRef) -> str:
    began = time.monotonic()
    answer = await rig.prepare(claim, timeout_s=SHORT_S)
    took = time.monotonic() - began
    assert answer.error.startswith("DaemonNotReady: "), answer.error
    assert took > SHORT_S - 2.3, took
    return str(answer.error)


async def test_no_pod(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.create_domain()
    daemonset = rig.create_daemonset(domain)
    said = await lacks(rig, rig.create_channel_claim(domain))
    name = f"{rig.namespace}/{daemonset['metadata']['name']}"
    assert f"DaemonSet {name} has made no pod for this node" in said
    assert f"{domain['metadata']['namespace']}/ring on node {rig.node.name}" in said
    await rig.poll_until(lambda: rig.events("DaemonNotReady"), "an Event")


async def test_a_failure_of_the_daemons_own_claim_reaches_the_workload_at_once(
    rig: DomainRig,
) -> None:
    await rig.start()
    domain = rig.create_domain()
    claim = rig.create_channel_claim(domain)
    waiting = rig.start_prepare(claim)
    await rig.poll_until(lambda: rig.node_label() == domain["metadata"]["uid"], "the node's label")
    rig.remove_imex_capability()
    daemon = rig.create_daemon_claim(domain)
    assert (await rig.prepare(daemon)).error.startswith("DeviceNodeMissing: ")

    def told() -> list[str]:
        mine = [e for e in rig.events("DaemonNotReady") if claim.name in str(e["involvedObject"])]
        return [event["message"] for event in mine]

    await rig.poll_until(told, "an Event", 8)
    (message,) = told()
    assert f"its claim {daemon.namespace}/{daemon.name} is refused, DeviceNodeMissing: " in message
    assert message.endswith("NVIDIA kernel module is loaded and supports IMEX (nvidia-smi works)")
    assert await rig.unprepare(claim) == ""
    assert "is refused, DeviceNodeMissing: " in (await waiting).error


async def test_a_failure_of_an_earlier_daemons_claim_is_not_reported(
    rig: DomainRig,
) -> None:
    await rig.start()
    domain = rig.create_domain()
    rig.remove_imex_capability()
    assert (await rig.prepare(rig.create_daemon_claim(domain))).error.startswith(
        "DeviceNodeMissing: "
    )
    successor = rig.create_daemon_pod(domain)
    pods = f"/api/v1/namespaces/{rig.namespace}/pods"
    for pod in rig.server.request("GET", pods)["items"]:
        if pod["metadata"]["uid"] != successor["metadata"]["uid"]:
            path = f"{pods}/{pod['metadata']['name']}"
            rig.server.request("DELETE", path, {"gracePeriodSeconds": 0})
    said = await lacks(rig, rig.create_channel_claim(domain))
    assert f"{successor['metadata']['name']} is starting" in said
    assert "refused" not in said


async def test_the_daemons_own_message_and_absent_peers(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.create_domain()
    daemon = rig.create_daemon_claim(domain)
    assert not (await rig.prepare(daemon)).error
    words = "nvidia-imex says WAITING_FOR_RECOVERY"
    rig.write_clique_entry(domain, "NotReady", podUID=rig.pod_uid(daemon), message=words)
    rig.write_clique_entry(domain, "NotReady", node="node-z", index=1)
    claim = rig.create_channel_claim(domain)
    said = await lacks(rig, claim)
    assert words in said
    assert "does not delay this node: node-z" in said
    (wait,) = rig.spans(claim, "wait domain")
    assert wait["attributes"]["nvdra.absent_peers"] == ["node-z"]
    assert wait["attributes"]["nvdra.lacks"] == words


async def test_an_entry_of_an_earlier_daemon_makes_no_channel_ready(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.create_domain()
    daemon = await rig.make_daemon_ready(domain)
    assert await rig.unprepare(daemon) == ""
    successor = rig.create_daemon_claim(domain)
    assert not (await rig.prepare(successor)).error
    claim = rig.create_channel_claim(domain)
    assert "is starting" in await lacks(rig, claim)
    waiting = rig.start_prepare(claim)
    rig.write_clique_entry(domain, podUID=rig.pod_uid(successor))
    assert not (await waiting).error
