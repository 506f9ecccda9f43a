# SPDX-License-Identifier: Apache-2.0
"""The debug port: traces in three forms, and the verbosity of the log."""

import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nvdra_api.errors import PermanentError, Reason
from nvdra_api.ids import ClaimUID, NodeName
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.http import debug_endpoint, listener
from nvdra_runtime.process.clock import SystemClock
from nvdra_runtime.telemetry import instrumentation, logs
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.logs import ConfiguredLogging, LogFormat
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder

Ask = Callable[..., Awaitable[Any]]

REF = ClaimRef("default", "train", ClaimUID("3f0c1a52-7c1b-4d0e-8a55-0123456789ab"))
TRACE = "3f0c1a527c1b4d0e8a550123456789ab"
BROWSER = "text/html,application/xhtml+xml,*/*;q=0.8"


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def logging_(log: io.StringIO) -> Iterator[ConfiguredLogging]:
    made = logs.configure(LogFormat.JSON, 0, "nvdra-test", log)
    yield made
    made.close()


@pytest.fixture
async def address(logging_: ConfiguredLogging) -> AsyncIterator[str]:
    """The debug port of a component that has prepared one claim."""
    metrics = PluginMetrics(driver="gpu.nvidia.com", node=NodeName("node-a"))
    telemetry = Telemetry(SystemClock(), metrics, TraceRecorder())
    trace, root = instrumentation.claim_trace_and_root(REF, NodeName("node-a"))
    attributes = instrumentation.claim_attributes(REF)
    with (
        telemetry.operation("prepare", trace=trace, parent=root, attributes=attributes),
        telemetry.step("fetch claim"),
    ):
        pass
    now = datetime.now(UTC)
    telemetry.write_finished_span(
        "claim", trace=trace, id=root, parent=None, start=now - timedelta(seconds=1), end=now
    )
    routes = debug_endpoint.routes(
        telemetry.recorder, logging_, SystemClock(), lambda: {"node": "node-a"}
    )
    async with listener.listen("127.0.0.1:0", routes) as address:
        yield address


async def test_the_list_names_claims_and_outcomes(ask: Ask, address: str) -> None:
    (line,) = json.loads((await ask(address, "/debug/traces")).text)

    assert (line["trace_id"], line["claim"]) == (TRACE, "default/train")
    assert (line["name"], line["outcome"]) == ("claim", "success")


@pytest.mark.parametrize("asked", [TRACE, REF.uid, TRACE.upper()])
async def test_a_trace_is_found_by_its_id_or_the_claims_uid(
    ask: Ask, address: str, asked: str
) -> None:
    answer = await ask(address, f"/debug/traces/{asked}")

    assert answer.content_type == "application/json"
    (root,) = json.loads(answer.text)["spans"]
    (prepare,) = root["children"]
    assert [child["name"] for child in prepare["children"]] == ["fetch claim"]


async def test_a_browser_gets_a_page_that_may_load_nothing(ask: Ask, address: str) -> None:
    for path in ("/debug/traces", f"/debug/traces/{TRACE}"):
        answer = await ask(address, path, accept=BROWSER)
        assert answer.content_type == "text/html"
        assert "default/train" in answer.text
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")


async def test_a_terminal_gets_text_when_it_asks(ask: Ask, address: str) -> None:
    trace = await ask(address, f"/debug/traces/{TRACE}?format=text", accept=BROWSER)
    index = await ask(address, "/debug/traces?format=text")

    assert trace.content_type == index.content_type == "text/plain"
    assert "fetch claim" in trace.text
    assert TRACE in index.text


async def test_a_form_that_does_not_exist_is_refused_with_those_that_do(
    ask: Ask, address: str
) -> None:
    answer = await ask(address, "/debug/traces?format=xml")

    assert answer.status == 400
    assert "json, text, html" in answer.text


async def test_a_trace_that_is_not_here_is_explained(ask: Ask, address: str) -> None:
    answer = await ask(address, "/debug/traces/00000000-0000-4000-8000-000000000000")

    assert answer.status == 404
    assert "last 512 traces" in answer.text
    assert "UID of a claim" in answer.text


async def test_the_verbosity_is_read_and_changed_while_running(
    ask: Ask, address: str, logging_: ConfiguredLogging, log: io.StringIO
) -> None:
    before = await ask(address, "/debug/flags/v")
    answer = await ask(address, "/debug/flags/v", method="PUT", data="4\n")
    after = await ask(address, "/debug/flags/v")

    assert (before.text, after.text) == ("0\n", "4\n")
    assert answer.text == "verbosity is 4, was 0\n"
    assert logging_.verbosity == 4
    record = json.loads(log.getvalue().splitlines()[-1])
    assert record["message"] == "Changed the verbosity of the log"


@pytest.mark.parametrize("body", ["", "high", "-1", "4.5", "²"])
async def test_a_verbosity_that_is_no_number_is_refused(
    ask: Ask, address: str, logging_: ConfiguredLogging, body: str
) -> None:
    answer = await ask(address, "/debug/flags/v", method="PUT", data=body.encode())

    assert answer.status == 400
    assert "send a number" in answer.text
    assert logging_.verbosity == 0


async def test_what_the_component_knows_is_json(address: str, ask: Ask) -> None:
    answer = await ask(address, "/debug/status")
    assert (answer.status, answer.content_type) == (200, "application/json")
    assert json.loads(answer.text) == {"node": "node-a"}


async def test_an_action_gets_the_document_and_its_refusals_are_told_to_operators(
    ask: Ask, logging_: ConfiguredLogging
) -> None:
    async def act(document: Mapping[str, Any]) -> Mapping[str, Any]:
        if document.get("for") == "ever":
            raise PermanentError(
                Reason.DEVICE_IN_USE, "gpu-1 is held", operator_message="default/train holds gpu-1"
            )
        return {"seconds": int(document["seconds"])}

    recorder = TraceRecorder()
    actions = {"nvml/release": act}
    routes = debug_endpoint.routes(recorder, logging_, SystemClock(), lambda: {}, actions)
    async with listener.listen("127.0.0.1:0", routes) as address:
        path = "/debug/nvml/release"
        done = await ask(address, path, method="POST", json={"seconds": "5"})
        assert (done.status, json.loads(done.text)) == (200, {"seconds": 5})
        refused = await ask(address, path, method="POST", json={"for": "ever"})
        assert refused.status == 409
        assert refused.text == "DeviceInUse: default/train holds gpu-1\n"
        for wrong in ({"seconds": "soon"}, [1]):
            assert (await ask(address, path, method="POST", json=wrong)).status == 400
        # What a page of another site can make a browser send.
        assert (await ask(address, path, method="POST", data='{"seconds": 5}')).status == 415
