"""Alerts on the page of reasons name metrics that there are, and pods as helm names them."""

import re
from collections.abc import Iterator

import pytest
from nvdra_api.types import keys
from nvdra_api.types.errors import Reason
from nvdra_api.types.reasons import EXPLANATIONS

SUFFIXES = re.compile("_(total|count|sum|bucket)$")
OURS = {value for value in vars(keys).values() if str(value).startswith("nvdra_")}


def alerts(pattern: str) -> Iterator[tuple[Reason, str]]:
    """Reason and match of a pattern in its alert."""
    for reason, told in EXPLANATIONS.items():
        for match in re.findall(pattern, told.alert):
            yield reason, match


@pytest.mark.parametrize(("reason", "metric"), [*alerts(r"\bnvdra_\w+")])
def test_a_metric_is_one_that_a_component_has(reason: Reason, metric: str) -> None:
    assert SUFFIXES.sub("", metric) in OURS, reason


@pytest.mark.parametrize(
    ("reason", "pods"),
    [
        (Reason.DRIVER_MISMATCH, {"nvdra-nvdra-gpu-plugin-x7k2p", "nvdra-nvdra-cd-plugin-9wz4c"}),
        (Reason.FABRIC_ERROR, {"nvdra-nvdra-cd-plugin-9wz4c", "nvdra-cd-plugin-9wz4c"}),
    ],
)
def test_pods_of_the_documented_install_are_meant(reason: Reason, pods: set[str]) -> None:
    found = dict(alerts(r'\bpod=~"([^"]*)"'))[reason]
    assert all(re.fullmatch(found, pod) for pod in pods)  # PromQL anchors at both ends
    assert not re.fullmatch(found, "nvdra-nvdra-cd-controller-6d5f8-abcde")


def test_every_alert_on_pods_is_looked_at() -> None:
    assert {reason for reason, _ in alerts("pod=~")} == {
        Reason.DRIVER_MISMATCH,
        Reason.FABRIC_ERROR,
    }
