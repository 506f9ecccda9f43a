"""ComputeDomainCliques=false: who is ready stands in the domain's status, which names no pods."""

import asyncio

from domain_rig import DomainRig, cdi_names

BY_NAME = "--feature-gates=ComputeDomainCliques=false"
BY_ADDRESS = "--feature-gates=ComputeDomainCliques=false,IMEXDaemonsWithDNSNames=false"
OLD, NEW = "10.0.0.1", "10.0.0.2"


async def test_a_channel_is_given_on_the_word_of_the_address_that_the_nodes_own_daemon_has(
    rig: DomainRig,
) -> None:
    await rig.start(BY_NAME)
    domain = rig.domain()
    claim = rig.channel(domain)
    waiting = rig.begin(claim)
    await rig.soon(lambda: rig.label() == domain["metadata"]["uid"], "the node's label")
    rig.say_in_status(domain, rig.member(OLD), rig.member("10.0.0.9", "NotReady", "node-z", 1))
    daemon = rig.daemon(domain)
    assert not (await rig.prepare(daemon)).error
    await asyncio.sleep(0.5)
    assert not waiting.done(), "nobody knows yet whose the address is"
    rig.run_at(daemon, NEW)
    await asyncio.sleep(1.5)
    assert not waiting.done(), "the daemon before this one had that address"
    rig.say_in_status(domain, rig.member(NEW))
    answer = await waiting
    assert not answer.error, answer.error
    assert cdi_names(answer) == [f"k8s.compute-domain.nvidia.com/claim={claim.uid}-channel-0"]


async def test_an_address_that_is_known_after_the_entry_is_heard_of(rig: DomainRig) -> None:
    await rig.start(BY_NAME)
    domain = rig.domain()
    daemon = rig.daemon(domain)
    assert not (await rig.prepare(daemon)).error
    rig.say_in_status(domain, rig.member(NEW))
    waiting = rig.begin(rig.channel(domain))
    await asyncio.sleep(1.5)
    assert not waiting.done()
    rig.run_at(daemon, NEW)
    answer = await waiting
    assert not answer.error, answer.error


async def test_the_status_of_a_predecessor_is_told_to_be_that(rig: DomainRig) -> None:
    await rig.start(BY_NAME)
    domain = rig.domain()
    daemon = rig.daemon(domain)
    assert not (await rig.prepare(daemon)).error
    rig.say_in_status(domain, rig.member(OLD))
    claim = rig.channel(domain)
    answer = await rig.prepare(claim, timeout_s=5)
    assert answer.error.startswith("DaemonNotReady: "), answer.error
    assert "is starting" in answer.error


async def test_by_address_the_domain_has_to_be_whole_and_nobody_else_ready(rig: DomainRig) -> None:
    await rig.start(BY_ADDRESS)
    domain = rig.domain(numNodes=2)
    daemon = rig.daemon(domain)
    assert not (await rig.prepare(daemon)).error
    rig.run_at(daemon, NEW)
    rig.say_in_status(domain, rig.member(NEW))
    claim = rig.channel(domain)
    answer = await rig.prepare(claim, timeout_s=5)
    assert "1 of the 2 nodes that the domain waits for have joined" in answer.error, answer.error
    waiting = rig.begin(claim)
    rig.say_in_status(domain, rig.member(NEW), rig.member(OLD, "NotReady", "node-z", 1))
    answer = await waiting
    assert not answer.error, answer.error
    assert cdi_names(answer)
