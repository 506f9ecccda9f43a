# SPDX-License-Identifier: Apache-2.0
"""The public server has probes and metrics, the debug server has traces and status."""

import io
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from nvdra_runtime.http import probes, servers
from nvdra_runtime.process.clock import SystemClock
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.logs import LogFormat
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder
from nvdra_testing import ports
from prometheus_client import CollectorRegistry, Counter

Ask = Callable[..., Awaitable[Any]]


def ignore(server: str, reason: str) -> None:
    """No connection is counted here."""


async def test_the_public_server_has_probes_and_metrics_and_no_debug_pages(ask: Ask) -> None:
    registry = CollectorRegistry()
    Counter("calls", "Calls.", registry=registry)
    problems = {"disk": "full"}
    checks: dict[str, probes.Check] = {"disk": lambda: problems.get("disk")}
    (port,) = ports.free_ports(1)
    address = f"127.0.0.1:{port}"
    async with servers.serve_public(address, checks, registry, "/numbers", ignore):
        assert (await ask(address, "/healthz")).status == 200
        assert (await ask(address, "/readyz")).status == 503
        problems.clear()
        assert (await ask(address, "/readyz")).status == 200
        assert "calls_total 0.0" in (await ask(address, "/numbers")).text
        assert (await ask(address, "/debug/traces")).status == 404


async def test_the_debug_server_has_traces_and_status(ask: Ask) -> None:
    logging = logs.configure(LogFormat.TEXT, 0, "test", io.StringIO())
    (port,) = ports.free_ports(1)
    address = f"127.0.0.1:{port}"
    try:
        async with servers.serve_debug(
            address, TraceRecorder(), logging, SystemClock(), lambda: {"devices": 8}, ignore
        ):
            assert '"devices": 8' in (await ask(address, "/debug/status")).text
            assert (await ask(address, "/debug/traces")).text == "[]\n"
            assert (await ask(address, "/healthz")).status == 404
    finally:
        logging.close()


async def test_an_empty_address_disables_a_server() -> None:
    async with servers.serve_public("", {}, CollectorRegistry(), "/metrics", ignore):
        pass


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:6060", "LOCALHOST:1", "127.0.0.1:6060", "[::1]:6060", "[::1]"]
)
async def test_the_debug_server_answers_to_names_of_the_loopback(ask: Ask, host: str) -> None:
    assert (await _ask_debug(ask, host, "GET", "/debug/status")).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:6060", "localhost.evil.example", "10.0.0.1", "", "[::1"]
)
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/debug/traces"), ("POST", "/debug/nvml/release"), ("GET", "/")]
)
async def test_the_debug_server_answers_to_no_other_name(
    ask: Ask, host: str, method: str, path: str
) -> None:
    answer = await _ask_debug(ask, host, method, path)
    assert answer.status == 421
    assert "use localhost, 127.0.0.1 or [::1]" in answer.text


async def _ask_debug(ask: Ask, host: str, method: str, path: str) -> Any:
    logging = logs.configure(LogFormat.TEXT, 0, "test", io.StringIO())
    (port,) = ports.free_ports(1)
    address = f"127.0.0.1:{port}"
    try:
        async with servers.serve_debug(
            address, TraceRecorder(), logging, SystemClock(), dict, ignore
        ):
            return await ask(address, path, method=method, host=host)
    finally:
        logging.close()
