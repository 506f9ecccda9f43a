# SPDX-License-Identifier: Apache-2.0
"""An API server that is down, slow, overloaded or returns wrong objects."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from nvdra_api.resource.claims import ClaimRef
from nvdra_testing.control_plane import apiserver
from nvdra_testing.durations import Durations
from nvdra_testing.faults import api_proxy
from nvdra_testing.faults.api_proxy import GET_CLAIM, FaultyProxy
from nvdra_testing.node.rig import Rig

STATUS = '{"kind":"Status","apiVersion":"v1","status":"Failure","message":"%s","code":%d}'


@pytest_asyncio.fixture
async def proxy(rig: Rig) -> AsyncIterator[FaultyProxy]:
    async with api_proxy.run_proxy(rig.server, rig.node.kubelet.parent) as running:
        await rig.start(f"--kubeconfig={running.kubeconfig}")
        yield running


async def answer(rig: Rig, claim: ClaimRef, **how: Any) -> Any:
    return (await rig.dra.prepare([claim], **how))[claim.uid]


@pytest.mark.parametrize(
    "spoilt",
    [
        {"status": 500, "body": STATUS % ("etcdserver: request timed out", 500)},
        {"status": 409, "body": STATUS % ("the object has been modified", 409)},
        {"status": 410, "body": STATUS % ("too old resource version", 410)},
        {"status": 429, "body": "slow down", "headers": {"Retry-After": "1"}},
        {"status": 503, "body": "no backend", "headers": {"Retry-After": "1"}},
        {"status": 403, "body": STATUS % ("rules are not in effect yet", 403)},
        {"status": 404, "body": "404 page not found"},
        {"closes_connection": True},
    ],
    ids=lambda spoilt: str(spoilt.get("status", "cut")),
)
async def test_a_claim_is_asked_for_again_until_the_api_server_has_come_to_itself(
    rig: Rig, proxy: FaultyProxy, spoilt: dict[str, Any]
) -> None:
    claim = rig.create_claim("gpu-0")
    with proxy.inject(GET_CLAIM, times=4, **spoilt) as spoilage:
        assert not (await answer(rig, claim)).error
        assert spoilage.hits == 4
    (fetch,) = rig.spans(claim, "fetch claim")
    if spoilt.get("status") != 429:  # which the client itself sits out
        assert {event["name"] for event in fetch["events"]} == {"retry"}


async def test_an_api_server_that_never_comes_to_itself_is_the_reason_with_its_last_words(
    rig: Rig, proxy: FaultyProxy
) -> None:
    claim = rig.create_claim("gpu-0")
    body = STATUS % ("etcdserver: no leader", 500)
    with proxy.inject(GET_CLAIM, status=500, body=body):
        text = (await answer(rig, claim, timeout_s=6)).error
    assert text.startswith("ApiUnavailable: GET /apis/resource.k8s.io/")
    found = re.search(r"500: etcdserver: no leader \(asked (\d+) times in \d s\)", text)
    assert found, text
    # It is asked again and again, with growing pauses: not by everybody all the time.
    assert 4 <= int(found[1]) <= 8
    assert not rig.recorded_claims()


async def test_a_server_that_names_a_time_is_not_asked_before(rig: Rig, proxy: FaultyProxy) -> None:
    claim = rig.create_claim("gpu-0")
    spoilt: dict[str, Any] = {"status": 503, "body": "starting", "headers": {"Retry-After": "3"}}
    with proxy.inject(GET_CLAIM, times=1, **spoilt):
        assert not (await answer(rig, claim)).error
    first, second = (moment for moment, asked in proxy.requests if claim.name in asked)
    assert second - first >= 3


async def test_an_answer_that_takes_five_seconds_is_waited_for(
    rig: Rig, proxy: FaultyProxy
) -> None:
    slow, held = rig.create_claim("gpu-0"), rig.create_claim("gpu-1")
    before = await answer(rig, held)
    assert not before.error
    with proxy.inject(GET_CLAIM, delay_s=5):
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(answer(rig, slow))
            # What is held is answered meanwhile, and nobody is asked.
            assert await answer(rig, held) == before
            assert not waiting.done()
    assert not waiting.result().error
    assert proxy.count(rf".*{slow.name}") == 1


async def test_a_request_that_is_never_answered_is_given_up_and_made_again(
    rig: Rig, proxy: FaultyProxy
) -> None:
    claim = rig.create_claim("gpu-0")
    with proxy.inject(GET_CLAIM, delay_s=-1, times=1):
        assert not (await answer(rig, claim)).error
    assert proxy.count(rf".*{claim.name}") == 2


async def test_an_api_server_that_is_away_for_a_while_costs_a_claim_no_more_than_that(
    rig: Rig, proxy: FaultyProxy, durations: Durations
) -> None:
    """The kubelet would come back only after a minute; the call itself goes on."""
    held, later = rig.create_claim("gpu-0"), rig.create_claim("gpu-1")
    before = await answer(rig, held)
    assert not before.error
    await proxy.stop_listening()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(answer(rig, later))
        assert await answer(rig, held) == before
        assert not (await rig.dra.unprepare([held]))[held.uid].error
        await asyncio.sleep(durations.outage_s)  # the length of the outage, not a wait
        assert not waiting.done()
        await proxy.listen()
        back = asyncio.get_running_loop().time()
    assert not waiting.result().error
    assert asyncio.get_running_loop().time() - back < 4


async def test_an_api_server_that_is_away_for_a_minute_is_the_reason_and_the_retry_succeeds(
    rig: Rig, proxy: FaultyProxy
) -> None:
    claim = rig.create_claim("gpu-1")
    await proxy.stop_listening()
    text = (await answer(rig, claim, timeout_s=5)).error
    assert text.startswith("ApiUnavailable: ")
    assert "Cannot connect" in text
    await proxy.listen()
    assert not (await answer(rig, claim)).error


async def test_a_claim_that_is_given_up_during_an_outage_keeps_nobody_waiting(
    rig: Rig, proxy: FaultyProxy
) -> None:
    claim = rig.create_claim("gpu-1")
    await proxy.stop_listening()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(answer(rig, claim))
        await asyncio.sleep(0.5)  # it has been tried a few times
        began = asyncio.get_running_loop().time()
        assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    assert asyncio.get_running_loop().time() - began < 4
    assert waiting.result().error.startswith("ApiUnavailable: ")


async def test_a_token_that_has_expired_is_read_again_and_the_call_goes_on(
    rig: Rig, proxy: FaultyProxy
) -> None:
    """As when the kubelet has renewed the pod's token and we still have the old one."""
    expired = STATUS % ("Unauthorized", 401)
    renewed = apiserver.kubeconfig(
        f"http://127.0.0.1:{proxy.port}", rig.server.ca_file, {"token": rig.server.token}
    )
    claim = rig.create_claim("gpu-0")
    proxy.kubeconfig.write_text("not: [yet")
    with proxy.inject(GET_CLAIM, status=401, body=expired) as spoilage:
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(answer(rig, claim))
            await _met(spoilage, 2)
            proxy.kubeconfig.write_text(renewed)
            spoilage.remaining = 1
    assert not waiting.result().error


async def test_an_idle_plugin_asks_for_nothing_but_its_watch(rig: Rig, proxy: FaultyProxy) -> None:
    claim = rig.create_claim("gpu-0")
    await answer(rig, claim)
    await rig.wait_until(lambda: bool(rig.spans(claim, "claim")), "the trace's root")
    await rig.wait_until(
        lambda: any(asked.startswith("PATCH") for _, asked in proxy.requests), "the status"
    )
    before = len(proxy.requests)
    await asyncio.sleep(5)  # nothing shall happen
    assert [asked for _, asked in proxy.requests[before:]] == []


async def _met(spoilage: api_proxy.Fault, times: int) -> None:
    async with asyncio.timeout(20):
        while spoilage.hits < times:  # noqa: ASYNC110 - requests of another process
            await asyncio.sleep(0.02)
