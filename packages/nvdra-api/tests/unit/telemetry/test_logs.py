# SPDX-License-Identifier: Apache-2.0
"""Log lines for machines and for people, and who is heard at which verbosity."""

import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nvdra_api.errors import PermanentError, Reason
from nvdra_api.ids import NodeName
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.telemetry import instrumentation, logs
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.logs import ConfiguredLogging, LogFormat

Configured = Callable[..., tuple[ConfiguredLogging, io.StringIO]]
LOG = logs.logger("nvdra_test.topic")


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_record_is_one_json_object_with_its_facts(configured: Configured) -> None:
    _, stream = configured(2)
    LOG.v(2, "Prepared the claim\nindeed", devices=["gpu-0", "gpu-1"], took_s=0.5, ready=True)

    (line,) = lines(stream)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "INFO",
        "message": "Prepared the claim\nindeed",
        "component": "nvdra-test",
        "logger": "nvdra_test.topic",
        "v": 2,
        "devices": ["gpu-0", "gpu-1"],
        "took_s": 0.5,
        "ready": True,
    }


def test_text_is_klogs_header_a_sentence_and_quoted_facts(configured: Configured) -> None:
    _, stream = configured(0, LogFormat.TEXT)
    LOG.warning("Cannot reach the API server", server='https://"x"', tries=3, since=None)

    line = stream.getvalue()
    assert line[0] == "W"
    head, _, rest = line.partition("] ")
    assert "test_logs.py:" in head
    assert rest == ('Cannot reach the API server server="https://\\"x\\"" tries=3 since=null\n')


@pytest.mark.parametrize("format_", LogFormat)
def test_a_text_of_others_has_a_bound(configured: Configured, format_: LogFormat) -> None:
    _, stream = configured(0, format_)
    long = "\u0085" * 1_000_000
    LOG.info("Answered", name=long)
    LOG.failure("Failed", ValueError(long))
    assert len(stream.getvalue()) < 6 * (logs.MAX_TEXT + 33_000) + 2_000


def test_a_record_inside_a_step_names_the_span_and_the_claim(
    configured: Configured, telemetry: Telemetry, ref: ClaimRef
) -> None:
    _, stream = configured(1)
    trace, root = instrumentation.claim_trace_and_root(ref, NodeName("node-a"))
    with telemetry.operation(
        "prepare", trace=trace, parent=root, attributes=instrumentation.claim_attributes(ref)
    ):
        with telemetry.step("fetch claim") as step:
            LOG.v(1, "Asked once more")
        logging.getLogger("nvdra_test.plain").info("Plain", extra={"code": 429})

    asked, plain = lines(stream)
    assert (asked["trace_id"], asked["span_id"]) == (trace, step.id)
    assert (asked["kind"], asked["namespace"], asked["name"]) == (
        "ResourceClaim",
        "default",
        "train",
    )
    assert (plain["uid"], plain["code"]) == (ref.uid, 429)


def test_a_known_failure_is_told_by_its_reason_without_a_stack(configured: Configured) -> None:
    _, stream = configured(0)
    LOG.failure("Gave up", PermanentError(Reason.INVALID_CONFIG, "replicas must be 1 or more"))

    (line,) = lines(stream)
    assert (line["level"], line["reason"]) == ("ERROR", "InvalidConfig")
    assert line["error"] == "replicas must be 1 or more"
    assert "stack" not in line


@pytest.mark.parametrize("format_", LogFormat)
def test_an_unknown_failure_is_told_with_its_stack(
    configured: Configured, format_: LogFormat
) -> None:
    _, stream = configured(0, format_)
    devices: dict[str, str] = {}
    try:
        _ = devices["gpu-9"]
    except KeyError as error:
        LOG.failure("Gave up", error)

    assert "KeyError: 'gpu-9'" in stream.getvalue()
    assert "Traceback" in stream.getvalue()


def test_no_fact_can_take_the_place_of_the_message(configured: Configured) -> None:
    _, stream = configured(0)
    LOG.info("The truth", message="a lie", level="DEBUG", component="else", name="train")

    (line,) = lines(stream)
    assert (line["message"], line["level"], line["component"]) == (
        "The truth",
        "INFO",
        "nvdra-test",
    )
    assert line["name"] == "train"


def test_verbosity_decides_who_is_heard_and_can_change(configured: Configured) -> None:
    logging_, stream = configured(2)
    LOG.v(2, "two")
    LOG.v(4, "four, too early")
    logging_.set_verbosity(4)
    LOG.v(4, "four")
    logging_.set_verbosity(0)
    LOG.v(2, "two, too late")
    LOG.info("zero")

    assert [line["message"] for line in lines(stream)] == ["two", "four", "zero"]


def test_verbosity_stops_before_other_libraries_would_log_whole_requests(
    configured: Configured,
) -> None:
    logging_, stream = configured(0)
    logging_.set_verbosity(10_000)
    logging.getLogger("kubernetes.client.rest").debug("response body: secret")
    logging.getLogger("asyncio").info("chatter")
    logging.getLogger("asyncio").warning("Executing took 3 seconds")

    assert logging_.verbosity == logs.MAX_VERBOSITY
    assert [line["message"] for line in lines(stream)] == ["Executing took 3 seconds"]


def test_a_negative_verbosity_is_refused(configured: Configured) -> None:
    logging_, _ = configured(3)
    with pytest.raises(ValueError, match="0 or more"):
        logging_.set_verbosity(-1)
    assert logging_.verbosity == 3


def test_a_fact_that_json_cannot_say_is_written_as_text(configured: Configured) -> None:
    _, stream = configured(0)
    LOG.info("Found", path=io.StringIO, uid=ClaimRef)

    assert "ClaimRef" in lines(stream)[0]["uid"]


@pytest.mark.parametrize("format_", LogFormat)
def test_a_tenants_text_neither_controls_a_terminal_nor_begins_a_line(
    configured: Configured, format_: LogFormat
) -> None:
    _, stream = configured(0, format_)
    hostile = "\x1b[31m\x9b2J\u202e\ud800\tx\nE0101 ready"
    LOG.warning(f"Refused {hostile}", reason=hostile)  # noqa: G004 - a foreign text
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    if format_ is LogFormat.JSON:
        assert json.loads(line)["reason"] == hostile


def test_a_stack_trace_does_not_control_a_terminal(configured: Configured) -> None:
    _, stream = configured(0, LogFormat.TEXT)
    LOG.failure("Could not", RuntimeError("\x1b[31m\x9b2J\u202e\ud800"))
    assert all(line.isprintable() for line in stream.getvalue().split("\n"))


@pytest.mark.parametrize("format_", LogFormat)
def test_a_fact_with_a_lone_surrogate_is_written(tmp_path: Path, format_: LogFormat) -> None:
    path = tmp_path / "log"
    with path.open("w", encoding="utf-8") as stream:
        configured = logs.configure(format_, 0, "test", stream)
        try:
            logs.logger("nvdra_test").info("A file is odd", file="x \udcff")
            logs.logger("nvdra_test").failure("It failed", ValueError("y \ud800"))
        finally:
            configured.close()
    assert "udcff" in path.read_text()
    assert "ud800" in path.read_text()
