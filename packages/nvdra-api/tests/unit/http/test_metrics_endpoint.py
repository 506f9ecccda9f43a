# SPDX-License-Identifier: Apache-2.0
"""`/metrics` in both of Prometheus' formats."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from nvdra_runtime.http import listener, metrics_endpoint
from prometheus_client import CollectorRegistry, Counter

Ask = Callable[..., Awaitable[Any]]

LOOPBACK = "127.0.0.1:0"
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"


@pytest.fixture
def registry() -> CollectorRegistry:
    made = CollectorRegistry()
    Counter("claims", "Claims.", registry=made).inc(2, exemplar={"trace_id": "a" * 32})
    return made


async def test_a_client_without_a_wish_gets_the_text_format(
    ask: Ask, registry: CollectorRegistry
) -> None:
    async with listener.listen(LOOPBACK, [metrics_endpoint.route(registry)]) as address:
        answer = await ask(address, "/metrics")
    assert (answer.status, answer.content_type) == (200, "text/plain")
    assert "claims_total 2.0\n" in answer.text
    assert "# EOF" not in answer.text
    assert "trace_id" not in answer.text


async def test_prometheus_gets_openmetrics_with_exemplars(
    ask: Ask, registry: CollectorRegistry
) -> None:
    async with listener.listen(LOOPBACK, [metrics_endpoint.route(registry)]) as address:
        answer = await ask(address, "/metrics", accept=OPENMETRICS)
    assert answer.content_type == "application/openmetrics-text"
    assert f'claims_total 2.0 # {{trace_id="{"a" * 32}"}} 2.0' in answer.text
    assert answer.text.endswith("# EOF\n")


async def test_each_request_reads_the_registry_again(ask: Ask) -> None:
    registry = CollectorRegistry()
    counter = Counter("claims", "Claims.", registry=registry)
    async with listener.listen(LOOPBACK, [metrics_endpoint.route(registry)]) as address:
        before = await ask(address, "/metrics")
        counter.inc()
        after = await ask(address, "/metrics")
    assert "claims_total 0.0\n" in before.text
    assert "claims_total 1.0\n" in after.text


async def test_the_path_is_the_one_that_is_configured(
    ask: Ask, registry: CollectorRegistry
) -> None:
    routes = [metrics_endpoint.route(registry, "/internal/metrics")]
    async with listener.listen(LOOPBACK, routes) as address:
        assert "claims_total 2.0" in (await ask(address, "/internal/metrics")).text
        assert (await ask(address, "/metrics")).status == 404
