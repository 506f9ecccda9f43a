# SPDX-License-Identifier: Apache-2.0
"""The charts as dependencies of an umbrella chart of somebody else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nvdra_testing.charts import folder, version

Render = Callable[..., dict[str, dict[str, Any]]]
Refusal = Callable[..., str]
Parent = Callable[..., str]

PARTS = ("nvdra-gpu-plugin", "nvdra-cd-plugin", "nvdra-cd-controller")
CHARTS = ("nvdra", *PARTS, "nvdra-webhook")


@pytest.fixture
def parent(charts: Path, tmp_path: Path) -> Parent:
    """Make a chart with one of ours as its dependency: its folder."""

    def made(chart: str, **dependency: str) -> str:
        (tmp_path / "charts").mkdir()
        (tmp_path / "charts" / chart).symlink_to(folder(chart, charts))
        asked = {"name": chart, "version": version(), "repository": "", **dependency}
        text = {"apiVersion": "v2", "name": "theirs", "version": "1.0.0", "dependencies": [asked]}
        (tmp_path / "Chart.yaml").write_text(json.dumps(text))
        return str(tmp_path)

    return made


def test_global_values_of_a_parent_chart_are_allowed(parent: Parent, render: Render) -> None:
    values = {"global": {"storageClass": "fast", "logVerbosity": 2}}
    objects = render(parent("nvdra"), values)
    for each in (*objects["DaemonSet"].values(), *objects["Deployment"].values()):
        (pod,) = each["spec"]["template"]["spec"]["containers"]
        assert {"name": "V", "value": "2"} in pod["env"]


@pytest.mark.parametrize("chart", CHARTS)
def test_a_condition_of_the_parent_chart_switches_it(
    parent: Parent, render: Render, chart: str
) -> None:
    """helm gives the value of the condition to the chart as well, whose schema must admit it."""
    theirs = parent(chart, condition=f"{chart}.enabled")
    assert render(theirs, {chart: {"enabled": True}})["ServiceAccount"]
    assert render(theirs, {chart: {"enabled": False}}) == {}


@pytest.mark.parametrize("chart", ["nvdra", *PARTS])
@pytest.mark.parametrize("value", [True, False])
def test_enabled_is_no_switch_of_the_chart_itself(
    refusal: Refusal, chart: str, value: bool
) -> None:
    told = "enabled: read by a parent chart's condition only"
    assert f"\n- {told}" in refusal(chart, {"enabled": value})
    if chart != "nvdra":
        text = refusal("nvdra", {chart: {"enabled": value}})
        assert f"\n- {chart}.{told}" in text
        assert "resources.gpus.enabled" in text
