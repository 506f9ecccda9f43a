# SPDX-License-Identifier: Apache-2.0
"""Alerts in the explanations of reasons use existing metrics and match the pods of the charts."""

import re
from collections.abc import Iterator

import pytest
from nvdra_api.errors import Reason
from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.reason_explanations import EXPLANATIONS

SUFFIXES = re.compile("_(total|count|sum|bucket)$")
OURS = {value for value in vars(keys).values() if str(value).startswith("nvdra_")}


def alerts(pattern: str) -> Iterator[tuple[Reason, str]]:
    """Yield the reasons and matches of a pattern in their alerts."""
    for reason, explanation in EXPLANATIONS.items():
        for match in re.findall(pattern, explanation.alert):
            yield reason, match


@pytest.mark.parametrize(("reason", "metric"), [*alerts(r"\bnvdra_\w+")])
def test_a_metric_in_an_alert_exists(reason: Reason, metric: str) -> None:
    assert SUFFIXES.sub("", metric) in OURS, reason


@pytest.mark.parametrize(
    ("reason", "pods"),
    [
        (Reason.DRIVER_MISMATCH, {"nvdra-nvdra-gpu-plugin-x7k2p", "nvdra-nvdra-cd-plugin-9wz4c"}),
        (Reason.FABRIC_ERROR, {"nvdra-nvdra-cd-plugin-9wz4c", "nvdra-cd-plugin-9wz4c"}),
    ],
)
def test_an_alert_matches_the_pods_of_the_documented_installation(
    reason: Reason, pods: set[str]
) -> None:
    found = dict(alerts(r'\bpod=~"([^"]*)"'))[reason]
    assert all(re.fullmatch(found, pod) for pod in pods)  # PromQL anchors at both ends
    assert not re.fullmatch(found, "nvdra-nvdra-cd-controller-6d5f8-abcde")


def test_every_alert_on_pods_is_tested() -> None:
    assert {reason for reason, _ in alerts("pod=~")} == {
        Reason.DRIVER_MISMATCH,
        Reason.FABRIC_ERROR,
    }
