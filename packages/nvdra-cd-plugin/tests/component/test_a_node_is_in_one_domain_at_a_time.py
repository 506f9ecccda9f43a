"""The label of the node: when it is set, when it goes, and who stands in whose way."""

import asyncio

import domains
from domain_rig import DomainRig, cdi_names
from nvdra_api.types.names import GPU_CLIQUE_LABEL


async def test_a_second_domain_waits_for_the_last_claim_of_the_first(rig: DomainRig) -> None:
    await rig.start()
    first, second = rig.domain(), rig.domain()
    await rig.form(first)
    holder, waiter = rig.channel(first), rig.channel(second)
    assert not (await rig.prepare(holder)).error
    answer = await rig.prepare(waiter, timeout_s=4)
    assert answer.error.startswith("NodeInOtherDomain: "), answer.error
    assert first["metadata"]["uid"] in answer.error
    assert holder.name in answer.error

    waiting = rig.begin(waiter)
    assert await rig.unprepare(holder) == ""
    await rig.soon(lambda: rig.label() == second["metadata"]["uid"], "the other label")
    assert await rig.unprepare(waiter) == ""
    assert (await waiting).error.startswith("DaemonNotReady: ")
    assert rig.label() == ""


async def test_who_has_a_channel_of_a_deleted_domain_keeps_it_and_the_node_until_the_end(
    rig: DomainRig,
) -> None:
    await rig.start()
    first, second = rig.domain(), rig.domain()
    daemon, holder, waiter = await rig.form(first), rig.channel(first), rig.channel(second)
    given = cdi_names(await rig.prepare(holder))
    assert given

    # As the controller does it: the node is let go, and so the daemon ends; the pods are users'.
    rig.server.call("DELETE", domains.domains_path(first["metadata"]["namespace"], "ring"))
    rig.relabel(None)
    assert await rig.unprepare(daemon) == ""
    assert cdi_names(await rig.prepare(holder)) == given
    answer = await rig.prepare(waiter, timeout_s=4)
    assert answer.error.startswith("NodeInOtherDomain: "), answer.error
    assert holder.name in answer.error

    waiting = rig.begin(waiter)
    assert await rig.unprepare(holder) == ""
    await rig.soon(lambda: rig.label() == second["metadata"]["uid"], "the other label")
    assert await rig.unprepare(waiter) == ""
    assert not (await waiting).devices


async def test_a_label_that_somebody_else_set_is_not_overwritten(rig: DomainRig) -> None:
    await rig.start()
    domain, other = rig.domain(), rig.domain()
    rig.relabel(other["metadata"]["uid"])
    claim = rig.channel(domain)
    answer = await rig.prepare(claim, timeout_s=4)
    assert answer.error.startswith("NodeInOtherDomain: "), answer.error
    assert rig.label() == other["metadata"]["uid"]
    assert rig.held() == {}
    assert rig.told(domain) == [], "a node that is another domain's has no part in this one"
    assert await rig.unprepare(claim) == ""
    assert rig.label() == other["metadata"]["uid"]


async def test_a_claim_that_waits_lets_the_channel_go_when_the_node_is_given_to_another_domain(
    rig: DomainRig,
) -> None:
    await rig.start()
    domain, other = rig.domain(), rig.domain()
    claim = rig.channel(domain)
    assert (await rig.prepare(claim, timeout_s=4)).error.startswith("DaemonNotReady: ")
    assert set(rig.held()) == {claim.uid}
    rig.relabel(other["metadata"]["uid"])
    answer = await rig.prepare(claim, timeout_s=4)
    assert answer.error.startswith("NodeInOtherDomain: "), answer.error
    assert rig.label() == other["metadata"]["uid"]
    assert rig.held() == {}
    rig.relabel(None)
    await rig.form(domain)
    assert not (await rig.prepare(claim)).error
    assert rig.label() == domain["metadata"]["uid"]


async def test_the_label_stays_while_a_claim_waits_and_goes_with_it(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.domain()
    claim = rig.channel(domain)
    answer = await rig.prepare(claim, timeout_s=4)
    assert answer.error.startswith("DaemonNotReady: ")
    assert rig.label() == domain["metadata"]["uid"]
    assert await rig.unprepare(claim) == ""
    assert rig.label() == ""
    assert rig.held() == {}


async def test_a_label_that_is_left_over_goes_at_the_start(rig: DomainRig) -> None:
    rig.relabel("99999999-2222-3333-4444-555555555555")
    await rig.start()
    await rig.soon(lambda: rig.label() == "", "the label to go")


async def test_a_label_that_was_taken_off_is_put_back_at_the_start(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.domain()
    await rig.form(domain)
    assert not (await rig.prepare(rig.channel(domain))).error
    await rig.end()
    rig.relabel(None)
    await rig.start()
    await rig.soon(lambda: rig.label() == domain["metadata"]["uid"], "the label")


async def test_a_label_that_is_taken_off_while_it_is_needed_is_put_back_at_once(
    rig: DomainRig,
) -> None:
    await rig.start()
    domain, other = rig.domain(), rig.domain()
    uid = domain["metadata"]["uid"]
    await rig.form(domain)
    claim = rig.channel(domain)
    assert not (await rig.prepare(claim)).error
    for value in (None, other["metadata"]["uid"], None):
        rig.relabel(value)
        await rig.soon(lambda: rig.label() == uid, "the label", 8)
    assert await rig.unprepare(claim) == ""
    await asyncio.sleep(1)
    assert rig.label() == ""


async def test_the_label_of_a_domain_that_is_going_stays_off(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.domain()
    await rig.form(domain)
    assert not (await rig.prepare(rig.channel(domain))).error
    path = domains.domains_path(domain["metadata"]["namespace"], "ring")
    stored = rig.server.call("GET", path)
    stored["metadata"]["finalizers"] = ["resource.nvidia.com/computeDomain"]
    rig.server.call("PUT", path, stored)
    rig.server.call("DELETE", path)
    rig.relabel(None)
    await asyncio.sleep(2)
    assert rig.label() == ""


async def test_the_clique_is_a_label_where_that_is_asked_for(rig: DomainRig) -> None:
    await rig.start("--gpu-clique-label-enabled")

    def told() -> object:
        return (rig.node_object()["metadata"].get("labels") or {}).get(GPU_CLIQUE_LABEL)

    await rig.soon(lambda: told() == rig.clique, "the clique's label")
    await rig.end()
    assert told() == rig.clique, "a rollout of the plugin must not make it flap"
