# SPDX-License-Identifier: Apache-2.0
"""Requests are counted by verb and status, and their resource is never an object's name."""

import io
import json
from collections.abc import Iterator

import pytest
from nvdra_runtime.kube import request_observer
from nvdra_runtime.kube.request_observer import FinishedRequest
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.logs import ConfiguredLogging, LogFormat


class Metrics:
    """Keeps what is counted."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, float]] = []

    def api_request(self, verb: str, code: str, seconds: float) -> None:
        self.requests.append((verb, code, seconds))


@pytest.fixture
def configured_logs() -> Iterator[tuple[ConfiguredLogging, io.StringIO]]:
    """The log as a component sets it up, and what is written to it."""
    log = io.StringIO()
    made = logs.configure(LogFormat.JSON, 0, "nvdra-test", log)
    yield made, log
    made.close()


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("/api/v1/nodes/n", "nodes"),
        ("/api/v1/namespaces/ns/pods/p?watch=true", "pods"),
        ("/api/v1/namespaces/ns", "namespaces"),
        ("/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/c", "resourceclaims"),
        ("/apis/resource.k8s.io/v1/resourceslices?limit=1", "resourceslices"),
        ("/apis/resource.k8s.io", "discovery"),
    ],
)
def test_the_resource_is_the_plural_in_the_path(path: str, resource: str) -> None:
    assert request_observer.resource_of_path(path) == resource


def test_each_request_is_counted_and_logged_for_developers_only(
    configured_logs: tuple[ConfiguredLogging, io.StringIO],
) -> None:
    logging, log = configured_logs
    metrics = Metrics()
    observe = request_observer.count_and_log(metrics)
    logging.set_verbosity(5)
    observe(FinishedRequest("GET", "pods", 200, 0.5))
    assert log.getvalue() == ""
    logging.set_verbosity(6)
    observe(FinishedRequest("WATCH", "pods", 0, 0.25))
    assert metrics.requests == [("GET", "200", 0.5), ("WATCH", "no answer", 0.25)]
    record = json.loads(log.getvalue())
    assert record["message"] == "API request"
    facts = {key: record[key] for key in ("verb", "resource", "code", "seconds")}
    assert facts == {"verb": "WATCH", "resource": "pods", "code": "no answer", "seconds": 0.25}
