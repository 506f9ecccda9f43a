# SPDX-License-Identifier: Apache-2.0
"""What docs/platforms.md says to add on each platform, as a reader would take it from there."""

import re
from typing import Any

import yaml

from nvdra_testing.charts import CHARTS

_PAGE = (CHARTS.parent / "docs" / "platforms.md").read_text()


def _flags(row: str) -> list[str]:
    return [f"--set={value}" for value in re.findall(r"--set\s+'?([^\s`']+)", row)]


FLAGS = {
    row.split("|")[1].strip(): found
    for row in _PAGE.splitlines()
    if row.startswith("| ") and (found := _flags(row))
}
"""Platform → the flags of helm in its row."""
INSTEAD_OF_A_QUOTA = _flags(_PAGE.partition("## Priority classes")[2])
"""The flags without which a quota for priority classes is needed."""


def block(heading: str) -> dict[str, Any]:
    """The YAML in the section of that heading."""
    section = _PAGE.partition(f"## {heading}\n")[2]
    found: dict[str, Any] = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)[0])
    return found


QUOTA = block("Priority classes that need a quota")
MOVED_KUBELET = block("Another root of the kubelet")
