# SPDX-License-Identifier: Apache-2.0
"""One of several processes leads; the next one follows as soon as the lease is released."""

import asyncio
from datetime import UTC, datetime

from nvdra_runtime.kube import leader_election
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.leader_election import LeaderElectionSettings, LeaderElector


def elector(api: Client, name: str, lease: str) -> LeaderElector:
    settings = LeaderElectionSettings(
        "default", lease, duration_s=30, renew_deadline_s=5, retry_period_s=0.1
    )
    return LeaderElector(api, settings, name, lambda: datetime.now(UTC))


async def test_the_next_process_leads_at_once_after_a_release(api: Client) -> None:
    first, second = elector(api, "first", "handover"), elector(api, "second", "handover")
    stop = asyncio.Event()
    assert await first.acquire(stop)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(second.acquire(stop))
        async with leader_election.hold(first):
            await asyncio.sleep(0.5)  # renewed several times
            assert not waiting.done()
            assert second.holder == first.identity
    assert waiting.result()
    assert (first.is_leader, second.is_leader) == (False, True)
    await second.release()


async def test_a_process_that_is_stopped_stops_waiting(api: Client) -> None:
    first, second = elector(api, "first", "stop"), elector(api, "second", "stop")
    stop = asyncio.Event()
    assert await first.acquire(stop)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(second.acquire(stop))
        await asyncio.sleep(0.3)
        stop.set()
    assert not waiting.result()
    await first.release()


async def test_a_leader_that_finds_another_holder_has_lost_the_lease(api: Client) -> None:
    leader = elector(api, "leader", "stolen")
    assert await leader.acquire(asyncio.Event())
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/stolen"
    deadline = asyncio.get_running_loop().time() + 5
    lease = await api.get(path, deadline)
    lease["spec"]["holderIdentity"] = "thief"
    await api.replace(path, lease, deadline)
    async with asyncio.timeout(5):
        await leader.renew()
    assert leader.lost.is_set()
    assert not leader.is_leader
    assert leader.holder == "thief"
