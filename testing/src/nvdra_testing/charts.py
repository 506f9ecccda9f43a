# SPDX-License-Identifier: Apache-2.0
"""Where the charts of this repository are."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHARTS = Path(__file__).parents[3] / "charts"
UMBRELLA = "nvdra"
REGISTRY = "registry.example.com"
FROM_REGISTRY = f"--set=global.imageRegistry={REGISTRY}"
"""Nothing is installed with images that this project has not published."""
COMPONENTS = ("nvdra-gpu-plugin", "nvdra-cd-plugin", "nvdra-cd-controller", "nvdra-webhook")
_POLICY: Mapping[str, Any] = {"networkPolicy": {"enabled": True}}
RESTRICTED: Mapping[str, Mapping[str, Any]] = {
    "nvdra-gpu-plugin": {"kubeletPlugin": _POLICY},
    "nvdra-cd-plugin": {"kubeletPlugin": _POLICY},
    "nvdra-cd-controller": {"controller": _POLICY},
    "nvdra-webhook": _POLICY,
}
"""Per chart, the values that give its pods a network policy."""


def version(name: str = UMBRELLA) -> str:
    """The version of a chart of this tree, which is also the tag of its images."""
    found = re.search(r"^version: (.*)$", (folder(name) / "Chart.yaml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def image(package: str, chart: str = "") -> str:
    """The image of a component of this tree in `REGISTRY`."""
    return f"{REGISTRY}/nvdra/{package}:{version(chart or package)}"


def folder(name: str, charts: Path = CHARTS) -> Path:
    """The umbrella chart, or the chart of a component, which is a part of it."""
    umbrella = charts / UMBRELLA
    return umbrella if name == UMBRELLA else umbrella / "charts" / name
