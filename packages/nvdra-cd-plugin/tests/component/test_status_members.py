# SPDX-License-Identifier: Apache-2.0
"""ComputeDomainCliques=false: the domain's status says which daemons are ready."""

import asyncio
import json

from nvdra_testing.node.domain_rig import DomainRig, cdi_names

BY_NAME = "--feature-gates=ComputeDomainCliques=false"
BY_ADDRESS = "--feature-gates=ComputeDomainCliques=false,IMEXDaemonsWithDNSNames=false"
OLD, NEW = "10.0.0.1", "10.0.0.2"


async def test_an_entry_with_the_address_of_the_nodes_own_daemon_gives_the_channel(
    rig: DomainRig,
) -> None:
    await rig.start(BY_NAME)
    domain = rig.create_domain()
    claim = rig.create_channel_claim(domain)
    waiting = rig.start_prepare(claim)
    await rig.poll_until(lambda: rig.node_label() == domain["metadata"]["uid"], "the node's label")
    rig.write_status_nodes(
        domain, rig.status_node(OLD), rig.status_node("10.0.0.9", "NotReady", "node-z", 1)
    )
    daemon = rig.create_daemon_claim(domain)
    assert not (await rig.prepare(daemon)).error
    await asyncio.sleep(0.5)
    assert not waiting.done(), "nobody knows yet whose the address is"
    rig.write_pod_ip(daemon, NEW)
    await asyncio.sleep(1.5)
    assert not waiting.done(), "the daemon before this one had that address"
    rig.write_status_nodes(domain, rig.status_node(NEW))
    answer = await waiting
    assert not answer.error, answer.error
    assert cdi_names(answer) == [f"k8s.compute-domain.nvidia.com/claim={claim.uid}-channel-0"]


async def test_a_domain_made_before_the_gate_was_changed_is_watched_where_its_daemons_write(
    rig: DomainRig,
) -> None:
    await rig.start()
    kept = {"maxNodesPerImexDomain": 18, "featureGates": "ComputeDomainCliques=false"}
    domain = rig.create_domain(annotations={"nvdra.nvidia.com/domain-settings": json.dumps(kept)})
    daemon = rig.create_daemon_claim(domain)
    assert not (await rig.prepare(daemon)).error
    rig.write_pod_ip(daemon, NEW)
    rig.write_status_nodes(domain, rig.status_node(NEW))
    answer = await rig.prepare(rig.create_channel_claim(domain))
    assert not answer.error, answer.error


async def test_an_address_may_become_known_after_the_entry(rig: DomainRig) -> None:
    await rig.start(BY_NAME)
    domain = rig.create_domain()
    daemon = rig.create_daemon_claim(domain)
    assert not (await rig.prepare(daemon)).error
    rig.write_status_nodes(domain, rig.status_node(NEW))
    waiting = rig.start_prepare(rig.create_channel_claim(domain))
    await asyncio.sleep(1.5)
    assert not waiting.done()
    rig.write_pod_ip(daemon, NEW)
    answer = await waiting
    assert not answer.error, answer.error


async def test_the_entry_of_a_predecessor_is_named_as_such(rig: DomainRig) -> None:
    await rig.start(BY_NAME)
    domain = rig.create_domain()
    daemon = rig.create_daemon_claim(domain)
    assert not (await rig.prepare(daemon)).error
    rig.write_status_nodes(domain, rig.status_node(OLD))
    claim = rig.create_channel_claim(domain)
    answer = await rig.prepare(claim, timeout_s=5)
    assert answer.error.startswith("DaemonNotReady: "), answer.error
    assert "is starting" in answer.error


async def test_without_dns_names_all_nodes_must_have_joined(
    rig: DomainRig,
) -> None:
    await rig.start(BY_ADDRESS)
    domain = rig.create_domain(numNodes=2)
    daemon = rig.create_daemon_claim(domain)
    assert not (await rig.prepare(daemon)).error
    rig.write_pod_ip(daemon, NEW)
    rig.write_status_nodes(domain, rig.status_node(NEW))
    claim = rig.create_channel_claim(domain)
    answer = await rig.prepare(claim, timeout_s=5)
    assert "1 of the 2 nodes that the domain waits for have joined" in answer.error, answer.error
    waiting = rig.start_prepare(claim)
    rig.write_status_nodes(
        domain, rig.status_node(NEW), rig.status_node(OLD, "NotReady", "node-z", 1)
    )
    answer = await waiting
    assert not answer.error, answer.error
    assert cdi_names(answer)
