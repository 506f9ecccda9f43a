# SPDX-License-Identifier: Apache-2.0
"""Probes and metrics on the pod's port, and what a wrong address or path is told."""

import asyncio
import contextlib
import json
import os
import re
import resource
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from nvdra_runtime.http import listener, metrics_endpoint, probes
from prometheus_client import CollectorRegistry, Counter

Ask = Callable[..., Awaitable[Any]]

LOOPBACK = "127.0.0.1:0"


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        (":8080", None, 8080),
        ("127.0.0.1:6060", "127.0.0.1", 6060),
        ("localhost:0", "localhost", 0),
        ("[::1]:443", "::1", 443),
    ],
)
def test_an_address_is_host_and_port(address: str, host: str | None, port: int) -> None:
    assert listener.parse_address(address) == (host, port)


@pytest.mark.parametrize("address", ["", "8080", "host", "host:", "host:http", ":65536", ":-1"])
def test_what_is_no_address_is_told_what_is(address: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{address!r} is not host:port")):
        listener.parse_address(address)


async def test_a_port_that_is_taken_is_named() -> None:
    async with listener.listen(LOOPBACK, []) as taken:
        port = taken.rpartition(":")[2]
        with pytest.raises(OSError, match=port):
            async with listener.listen(taken, []):
                pass


async def test_a_port_is_free_again_when_the_listener_is_left(ask: Ask) -> None:
    async with listener.listen(LOOPBACK, []) as first:
        await ask(first, "/")
    async with listener.listen(first, []) as second:
        assert second == first


async def test_a_short_address_listens_on_every_interface(ask: Ask) -> None:
    routes = probes.routes(alive={}, ready={})
    async with listener.listen("0.0.0.0:0", routes) as address:
        port = address.rpartition(":")[2]
        assert (await ask(f"127.0.0.1:{port}", "/healthz")).text == "ok"


async def test_a_check_that_passes_may_have_something_to_say(ask: Ask) -> None:
    ready: dict[str, probes.Check] = {"gpus": lambda: probes.PassingRemark("there is none")}
    async with listener.listen(LOOPBACK, probes.routes(alive={}, ready=ready)) as address:
        answer = await ask(address, "/readyz?verbose")
    assert answer.status == 200
    assert "[+]gpus ok: there is none" in answer.text


async def test_a_component_is_ready_when_no_check_has_a_reason_against_it(ask: Ask) -> None:
    reasons: dict[str, str | None] = {"registered": "the kubelet has not called", "slices": None}
    ready = {name: (lambda name=name: reasons[name]) for name in reasons}
    async with listener.listen(LOOPBACK, probes.routes(alive={}, ready=ready)) as address:
        before = await ask(address, "/readyz")
        reasons["registered"] = None
        after = await ask(address, "/readyz")
        verbose = await ask(address, "/readyz?verbose")

    assert (before.status, before.text) == (
        503,
        "[-]registered failed: the kubelet has not called\n[+]slices ok\nreadyz check failed\n",
    )
    assert (after.status, after.text) == (200, "ok")
    assert verbose.text == "[+]registered ok\n[+]slices ok\nreadyz check passed\n"


async def test_programs_get_the_checks_as_json(ask: Ask) -> None:
    checks = {"nvml": lambda: "it hangs", "store": lambda: None}
    async with listener.listen(LOOPBACK, probes.routes(alive=checks, ready={})) as address:
        answer = await ask(address, "/healthz", accept="application/json")

    assert answer.status == 503
    assert json.loads(answer.text) == {"ok": False, "checks": {"nvml": "it hangs", "store": None}}


async def test_metrics_are_text_or_openmetrics_as_the_scraper_likes(ask: Ask) -> None:
    registry = CollectorRegistry()
    Counter("things", "Things.", registry=registry).inc(2, {"trace_id": "a" * 32})
    async with listener.listen(LOOPBACK, [metrics_endpoint.route(registry)]) as address:
        text = await ask(address, "/metrics")
        openmetrics = await ask(
            address,
            "/metrics",
            accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
        )

    assert text.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "things_total 2.0\n" in text.text
    assert "trace_id" not in text.text
    assert openmetrics.content_type == "application/openmetrics-text"
    assert f'things_total 2.0 # {{trace_id="{"a" * 32}"}}' in openmetrics.text
    assert openmetrics.text.endswith("# EOF\n")


async def test_the_path_of_metrics_is_the_users_choice(ask: Ask) -> None:
    route = metrics_endpoint.route(CollectorRegistry(), "/m")
    async with listener.listen(LOOPBACK, [route]) as address:
        assert (await ask(address, "/m")).status == 200
        assert (await ask(address, "/metrics")).status == 404


async def test_whoever_asks_for_something_else_is_told_what_there_is(ask: Ask) -> None:
    routes = [*probes.routes(alive={}, ready={}), metrics_endpoint.route(CollectorRegistry())]
    async with listener.listen(LOOPBACK, routes) as address:
        answer = await ask(address, "/livez", method="POST")

    assert (answer.status, answer.text) == (
        404,
        "POST /livez does not exist. The endpoints are:\n"
        "  GET /healthz\n  GET /metrics\n  GET /readyz\n",
    )


@pytest.mark.parametrize("sent", [b"", b"G", b"GET /healthz HTTP/1.1\r\nHost:"])
async def test_a_client_that_does_not_finish_a_request_is_left_soon(sent: bytes) -> None:
    dropped: list[tuple[str, str]] = []
    routes = probes.routes(alive={}, ready={})
    async with listener.listen(
        LOOPBACK, routes, on_dropped=lambda *what: dropped.append(what), request_s=0.05
    ) as address:
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(sent)
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionResetError):
                while await reader.read(1000):
                    pass
        writer.close()
    assert dropped == ([("http", "time")] if sent else [])


async def test_a_newcomer_is_answered_although_many_are_connected(ask: Ask) -> None:
    routes = probes.routes(alive={}, ready={})
    async with listener.listen(LOOPBACK, routes) as address:
        host, port = address.split(":")
        with contextlib.ExitStack() as stack:
            many = [
                stack.enter_context(socket.create_connection((host, int(port)), timeout=20))
                for _ in range(listener.MAX_CONNECTIONS + 20)
            ]
            assert (await ask(address, "/healthz")).text == "ok"
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.to_thread(many[0].recv, 1) == b""


@contextlib.contextmanager
def no_more_open_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_one = os.dup(0)
    os.close(next_one)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_one, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_client_that_cannot_be_accepted_costs_no_processor_time() -> None:
    loop = asyncio.get_running_loop()
    async with listener.listen(LOOPBACK, probes.routes(alive={}, ready={})) as address:
        host, port = address.split(":")
        with socket.socket() as client:
            client.setblocking(False)
            with no_more_open_files():
                client.connect_ex((host, int(port)))
                began = time.process_time()
                await asyncio.sleep(1)
                assert time.process_time() - began < 0.1
            async with asyncio.timeout(20):
                await loop.sock_sendall(client, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
                assert (await loop.sock_recv(client, 1000)).startswith(b"HTTP/1.1 200")
