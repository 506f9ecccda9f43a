"""Requests are counted by verb and status, and their resource is never an object's name."""

import logging

import pytest
from nvdra_runtime.kube import request_observer
from nvdra_runtime.kube.request_observer import FinishedRequest


class Metrics:
    """Keeps what is counted."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, float]] = []

    def api_request(self, verb: str, code: str, seconds: float) -> None:
        self.requests.append((verb, code, seconds))


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
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = Metrics()
    observe = request_observer.count_and_log(metrics)
    observe(FinishedRequest("GET", "pods", 200, 0.5))
    assert caplog.text == ""
    with caplog.at_level(logging.INFO - 6):
        observe(FinishedRequest("WATCH", "pods", 0, 0.25))
    assert metrics.requests == [("GET", "200", 0.5), ("WATCH", "no answer", 0.25)]
    assert "API request verb=WATCH resource=pods code=no answer seconds=0.250" in caplog.text
