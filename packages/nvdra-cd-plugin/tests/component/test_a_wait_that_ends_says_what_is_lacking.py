"""DaemonNotReady: what this node's daemon lacks, two seconds before the kubelet gives up."""

import time

from domain_rig import DomainRig
from nvdra_api.types.claims import ClaimRef

SHORT_S = 5.0


async def lacks(rig: DomainRig, claim: ClaimRef) -> str:
    began = time.monotonic()
    answer = await rig.prepare(claim, timeout_s=SHORT_S)
    took = time.monotonic() - began
    assert answer.error.startswith("DaemonNotReady: "), answer.error
    assert SHORT_S - 2.3 < took < SHORT_S - 0.5, took
    return str(answer.error)


async def test_no_pod(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.domain()
    daemonset = rig.daemonset(domain)
    said = await lacks(rig, rig.channel(domain))
    name = f"{rig.namespace}/{daemonset['metadata']['name']}"
    assert f"DaemonSet {name} has made no pod for this node" in said
    assert f"{domain['metadata']['namespace']}/ring on node {rig.node.name}" in said
    await rig.soon(lambda: rig.events("DaemonNotReady"), "an Event")


async def test_a_refusal_of_the_daemons_own_claim_is_told_the_workload_at_once(
    rig: DomainRig,
) -> None:
    await rig.start()
    domain = rig.domain()
    claim = rig.channel(domain)
    waiting = rig.begin(claim)
    await rig.soon(lambda: rig.label() == domain["metadata"]["uid"], "the node's label")
    rig.forbid_imex()
    daemon = rig.daemon(domain)
    assert (await rig.prepare(daemon)).error.startswith("DeviceNodeMissing: ")

    def told() -> list[str]:
        mine = [e for e in rig.events("DaemonNotReady") if claim.name in str(e["involvedObject"])]
        return [event["message"] for event in mine]

    await rig.soon(told, "an Event", 8)
    (message,) = told()
    assert f"its claim {daemon.namespace}/{daemon.name} is refused, DeviceNodeMissing: " in message
    assert message.endswith("NVIDIA kernel module is loaded and supports IMEX (nvidia-smi works)")
    assert await rig.unprepare(claim) == ""
    assert "is refused, DeviceNodeMissing: " in (await waiting).error


async def test_a_refusal_of_a_daemon_that_is_gone_is_not_told_of_its_successor(
    rig: DomainRig,
) -> None:
    await rig.start()
    domain = rig.domain()
    rig.forbid_imex()
    assert (await rig.prepare(rig.daemon(domain))).error.startswith("DeviceNodeMissing: ")
    successor = rig.daemon_pod(domain)
    pods = f"/api/v1/namespaces/{rig.namespace}/pods"
    for pod in rig.server.call("GET", pods)["items"]:
        if pod["metadata"]["uid"] != successor["metadata"]["uid"]:
            path = f"{pods}/{pod['metadata']['name']}"
            rig.server.call("DELETE", path, {"gracePeriodSeconds": 0})
    said = await lacks(rig, rig.channel(domain))
    assert f"{successor['metadata']['name']} is starting" in said
    assert "refused" not in said


async def test_the_daemons_own_word_and_absent_peers(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.domain()
    daemon = rig.daemon(domain)
    assert not (await rig.prepare(daemon)).error
    words = "nvidia-imex says WAITING_FOR_QUORUM"
    rig.say(domain, "NotReady", podUID=rig.pod_of(daemon), message=words)
    rig.say(domain, "NotReady", node="node-z", index=1)
    claim = rig.channel(domain)
    said = await lacks(rig, claim)
    assert words in said
    assert "holds nobody up: node-z" in said
    (wait,) = rig.spans(claim, "wait domain")
    assert wait["attributes"]["nvdra.absent_peers"] == ["node-z"]
    assert wait["attributes"]["nvdra.lacks"] == words


async def test_an_entry_of_a_daemon_that_is_gone_gives_nothing(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.domain()
    daemon = await rig.form(domain)
    assert await rig.unprepare(daemon) == ""
    successor = rig.daemon(domain)
    assert not (await rig.prepare(successor)).error
    claim = rig.channel(domain)
    assert "is starting" in await lacks(rig, claim)
    waiting = rig.begin(claim)
    rig.say(domain, podUID=rig.pod_of(successor))
    assert not (await waiting).error
