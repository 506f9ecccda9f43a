# SPDX-License-Identifier: Apache-2.0
"""The domain's label of the node: when it is set and removed, and which claims wait for it."""

import asyncio

from nvdra_api.names import GPU_CLIQUE_LABEL
from nvdra_testing.control_plane import domain_objects
from nvdra_testing.node.domain_rig import DomainRig, cdi_names


async def test_a_second_domain_waits_for_the_last_claim_of_the_first(rig: DomainRig) -> None:
    await rig.start()
    first, second = rig.create_domain(), rig.create_domain()
    await rig.make_daemon_ready(first)
    holder, waiter = rig.create_channel_claim(first), rig.create_channel_claim(second)
    assert not (await rig.prepare(holder)).error
    text = await rig.refusal(waiter)
    assert text.startswith("NodeInOtherDomain: "), text
    assert f"ComputeDomain {first['metadata']['uid']} of another namespace" in text
    for name in (first["metadata"]["namespace"], holder.name):
        assert name not in text
        assert name in rig.status(), "operators are told"

    waiting = rig.start_prepare(waiter)
    assert await rig.unprepare(holder) == ""
    await rig.poll_until(lambda: rig.node_label() == second["metadata"]["uid"], "the other label")
    assert await rig.unprepare(waiter) == ""
    assert (await waiting).error.startswith("DaemonNotReady: ")
    assert rig.node_label() == ""


async def test_a_claim_of_a_deleted_domain_keeps_its_channel_and_the_node_until_unprepared(
    rig: DomainRig,
) -> None:
    await rig.start()
    first, second = rig.create_domain(), rig.create_domain()
    daemon, holder, waiter = (
        await rig.make_daemon_ready(first),
        rig.create_channel_claim(first),
        rig.create_channel_claim(second),
    )
    given = cdi_names(await rig.prepare(holder))
    assert given

    # As the controller does it: the node is let go, and so the daemon ends; the pods are users'.
    rig.server.request(
        "DELETE", domain_objects.domains_path(first["metadata"]["namespace"], "ring")
    )
    rig.set_node_label(None)
    assert await rig.unprepare(daemon) == ""
    assert cdi_names(await rig.prepare(holder)) == given
    text = await rig.refusal(waiter)
    assert text.startswith("NodeInOtherDomain: "), text
    assert first["metadata"]["uid"] in text
    assert holder.name not in text

    waiting = rig.start_prepare(waiter)
    assert await rig.unprepare(holder) == ""
    await rig.poll_until(lambda: rig.node_label() == second["metadata"]["uid"], "the other label")
    assert await rig.unprepare(waiter) == ""
    assert not (await waiting).devices


async def test_a_claim_that_waits_for_a_daemon_is_answered_when_its_domain_is_deleted(
    rig: DomainRig,
) -> None:
    """The kubelet lets a pod go only after the call for it has ended, which may take 45 s."""
    await rig.start()
    domain = rig.create_domain()
    uid, namespace = domain["metadata"]["uid"], domain["metadata"]["namespace"]
    waiting = rig.start_prepare(rig.create_channel_claim(domain))
    await rig.poll_until(lambda: rig.node_label() == uid, "the label")
    began = asyncio.get_running_loop().time()
    rig.server.request("DELETE", domain_objects.domains_path(namespace, "ring"))
    rig.set_node_label(None)  # as the controller does it
    error = (await waiting).error
    assert error.startswith("DomainNotFound: "), error
    assert asyncio.get_running_loop().time() - began < 20


async def test_a_label_that_somebody_else_set_is_not_overwritten(rig: DomainRig) -> None:
    await rig.start()
    domain, other = rig.create_domain(), rig.create_domain()
    rig.set_node_label(other["metadata"]["uid"])
    claim = rig.create_channel_claim(domain)
    text = await rig.refusal(claim)
    assert text.startswith("NodeInOtherDomain: "), text
    assert rig.node_label() == other["metadata"]["uid"]
    assert rig.recorded_claims() == {}
    assert rig.domain_span_names(domain) == [], (
        "a node that is another domain's has no part in this one"
    )
    assert await rig.unprepare(claim) == ""
    assert rig.node_label() == other["metadata"]["uid"]


async def test_a_waiting_claim_releases_its_channel_when_the_node_joins_another_domain(
    rig: DomainRig,
) -> None:
    await rig.start()
    domain, other = rig.create_domain(), rig.create_domain()
    claim = rig.create_channel_claim(domain)
    assert (await rig.refusal(claim)).startswith("DaemonNotReady: ")
    assert set(rig.recorded_claims()) == {claim.uid}
    rig.set_node_label(other["metadata"]["uid"])
    text = await rig.refusal(claim)
    assert text.startswith("NodeInOtherDomain: "), text
    assert rig.node_label() == other["metadata"]["uid"]
    assert rig.recorded_claims() == {}
    rig.set_node_label(None)
    await rig.make_daemon_ready(domain)
    assert not (await rig.prepare(claim)).error
    assert rig.node_label() == domain["metadata"]["uid"]


async def test_the_label_stays_while_a_claim_waits_and_is_removed_with_it(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.create_domain()
    claim = rig.create_channel_claim(domain)
    text = await rig.refusal(claim)
    assert text.startswith("DaemonNotReady: ")
    assert rig.node_label() == domain["metadata"]["uid"]
    assert await rig.unprepare(claim) == ""
    assert rig.node_label() == ""
    assert rig.recorded_claims() == {}


async def test_a_stale_label_is_removed_at_the_start(rig: DomainRig) -> None:
    rig.set_node_label("99999999-2222-3333-4444-555555555555")
    await rig.start()
    await rig.poll_until(lambda: rig.node_label() == "", "the label to go")


async def test_a_missing_label_is_restored_at_the_start(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.create_domain()
    await rig.make_daemon_ready(domain)
    assert not (await rig.prepare(rig.create_channel_claim(domain))).error
    await rig.stop()
    rig.set_node_label(None)
    await rig.start()
    await rig.poll_until(lambda: rig.node_label() == domain["metadata"]["uid"], "the label")


async def test_a_label_that_is_removed_while_it_is_needed_is_restored_at_once(
    rig: DomainRig,
) -> None:
    await rig.start()
    domain, other = rig.create_domain(), rig.create_domain()
    uid = domain["metadata"]["uid"]
    await rig.make_daemon_ready(domain)
    claim = rig.create_channel_claim(domain)
    assert not (await rig.prepare(claim)).error
    for value in (None, other["metadata"]["uid"], None):
        rig.set_node_label(value)
        await rig.poll_until(lambda: rig.node_label() == uid, "the label", 8)
    assert await rig.unprepare(claim) == ""
    await asyncio.sleep(1)
    assert rig.node_label() == ""


async def test_the_label_of_a_domain_that_is_being_deleted_is_not_restored(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.create_domain()
    await rig.make_daemon_ready(domain)
    assert not (await rig.prepare(rig.create_channel_claim(domain))).error
    path = domain_objects.domains_path(domain["metadata"]["namespace"], "ring")
    stored = rig.server.request("GET", path)
    stored["metadata"]["finalizers"] = ["resource.nvidia.com/computeDomain"]
    rig.server.request("PUT", path, stored)
    rig.server.request("DELETE", path)
    rig.set_node_label(None)
    await asyncio.sleep(2)
    assert rig.node_label() == ""


async def test_the_clique_label_is_written_if_enabled(rig: DomainRig) -> None:
    await rig.start("--gpu-clique-label-enabled")

    def told() -> object:
        return (rig.node_object()["metadata"].get("labels") or {}).get(GPU_CLIQUE_LABEL)

    await rig.poll_until(lambda: told() == rig.clique, "the clique's label")
    await rig.stop()
    assert told() == rig.clique, "a rollout of the plugin must not make it flap"
