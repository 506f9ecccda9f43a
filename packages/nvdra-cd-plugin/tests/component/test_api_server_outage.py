# SPDX-License-Identifier: Apache-2.0
"""What works while the API server is away, and what waits for it."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest_asyncio
from nvdra_testing.faults import api_proxy
from nvdra_testing.faults.api_proxy import FaultyProxy
from nvdra_testing.node.domain_rig import DomainRig, cdi_names


@pytest_asyncio.fixture
async def proxy(rig: DomainRig) -> AsyncIterator[FaultyProxy]:
    async with api_proxy.run_proxy(rig.server, rig.node.kubelet.parent) as running:
        await rig.start(f"--kubeconfig={running.kubeconfig}")
        yield running


async def test_prepared_claims_are_answered_without_the_api_server(
    rig: DomainRig, proxy: FaultyProxy
) -> None:
    domain = rig.create_domain()
    daemon, claim = await rig.make_daemon_ready(domain), rig.create_channel_claim(domain)
    before = [cdi_names(await rig.prepare(each)) for each in (daemon, claim)]
    await proxy.stop_listening()
    began = time.monotonic()
    assert [cdi_names(await rig.prepare(each)) for each in (daemon, claim)] == before
    assert await rig.unprepare(daemon) == ""
    assert time.monotonic() - began < 20, "who waits for the API server does so to a call's end"


async def test_an_unprepare_waits_for_the_api_server_because_of_the_label(
    rig: DomainRig, proxy: FaultyProxy
) -> None:
    domain = rig.create_domain()
    await rig.make_daemon_ready(domain)
    claim = rig.create_channel_claim(domain)
    assert not (await rig.prepare(claim)).error
    await proxy.stop_listening()
    assert (await rig.unprepare(claim, timeout_s=5)).startswith("ApiUnavailable: ")
    assert claim.uid in rig.recorded_claims()
    async with asyncio.TaskGroup() as group:
        ending = group.create_task(rig.unprepare(claim))
        await asyncio.sleep(1)
        await proxy.listen()
    assert ending.result() == ""
    assert rig.node_label() == ""


async def test_a_prepare_waits_until_compute_domains_are_served(
    rig: DomainRig, proxy: FaultyProxy
) -> None:
    domain = rig.create_domain()
    await rig.make_daemon_ready(domain)
    claim = rig.create_channel_claim(domain)
    body = "404 page not found\n"
    with proxy.inject(r"GET .*/computedomains", status=404, body=body) as fault:
        answer = await rig.prepare(claim, timeout_s=7)
        assert answer.error.startswith("ApiUnavailable: "), answer.error
        assert fault.hits > 2
    with proxy.inject(r"GET .*/computedomains", times=2, status=404, body=body) as fault:
        assert not (await rig.prepare(claim)).error
    assert fault.hits == 2


async def test_a_wait_costs_one_list_and_one_watch_of_one_object(
    rig: DomainRig, proxy: FaultyProxy
) -> None:
    domain = rig.create_domain()
    claim = rig.create_channel_claim(domain)
    assert (await rig.refusal(claim, timeout_s=6)).startswith("DaemonNotReady: ")
    named = rf"GET .*/computedomaincliques\?.*{domain['metadata']['uid']}.{rig.clique}"
    assert proxy.count(named) == 2
    assert proxy.count(r"GET .*/computedomaincliques") == 2
    assert proxy.count(r"GET .*watch=true.*/(pods|nodes|computedomains)") == 0


async def test_the_domains_trace_has_this_nodes_spans(rig: DomainRig, proxy: FaultyProxy) -> None:
    domain = rig.create_domain()
    await rig.make_daemon_ready(domain)
    claim = rig.create_channel_claim(domain)
    assert not (await rig.prepare(claim)).error
    uid = domain["metadata"]["uid"]
    await rig.poll_until(
        lambda: rig.process.get(f"/debug/traces/{uid}", debug=True)[0] == 200, "the trace"
    )
    story = rig.process.get(f"/debug/traces/{uid}?format=text", debug=True)[1]
    for name in ("member", "wait domain", "prepare"):
        assert name in story
    (wait,) = rig.spans(claim, "wait domain")
    assert wait["attributes"]["nvdra.domain.uid"] == uid
    assert proxy.count(r"PATCH .*/nodes/") == 1
