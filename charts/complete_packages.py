# SPDX-License-Identifier: Apache-2.0
"""Gives charts what their packages need: `python charts/complete_packages.py`.

Each chart gets a copy of LICENSE, and charts/icon.svg as the icon in its Chart.yaml, in the text
itself, so that it has no address. The umbrella's values.yaml gets the values of its parts as
comments, below the keys where they are set: `helm show values` shows them, and an upgrade with
--reuse-values keeps none of them. A test fails when one of these is stale.
"""

import base64
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import yaml

CHARTS = Path(__file__).parent
UMBRELLA = CHARTS / "nvdra"
LICENSE = CHARTS.parent / "LICENSE"
ICON = CHARTS / "icon.svg"
BLOCK = re.compile(r"(^  # <values of (\S+)>\n).*?(^  # <end>$)", re.DOTALL | re.MULTILINE)


class StaleError(Exception):
    """A file has no place for what belongs into it; the text says which."""


def complete(charts: Path) -> None:
    """Write everything.

    Raises:
        StaleError: A file has no place for its part.
    """
    for chart in sorted(charts.glob("nvdra/**/Chart.yaml")):
        shutil.copyfile(LICENSE, chart.with_name("LICENSE"))
        chart.write_text(with_icon(chart.read_text(), ICON.read_bytes()))
    values = charts / "nvdra" / "values.yaml"
    parts = {
        each.parent.name: each.read_text() for each in charts.glob("nvdra/charts/*/values.yaml")
    }
    values.write_text(with_parts(values.read_text(), parts))


def with_icon(chart: str, icon: bytes) -> str:
    """A Chart.yaml with its icon.

    Raises:
        StaleError: It has no line for it.
    """
    line = f"icon: data:image/svg+xml;base64,{base64.b64encode(icon).decode()}"
    text, count = re.subn(r"^icon:.*$", line, chart, flags=re.MULTILINE)
    if count != 1:
        raise StaleError("a Chart.yaml needs one line `icon:`")
    return text


def with_parts(umbrella: str, parts: dict[str, str]) -> str:
    """The umbrella's values.yaml with the values of its parts as comments.

    Args:
        umbrella: Its text, with `  # <values of CHART>` … `  # <end>` for each part.
        parts: Chart → the text of its values.yaml.

    Raises:
        StaleError: A chart has no such block or several, or a block names no chart.
    """
    blocks = sorted(found[2] for found in BLOCK.finditer(umbrella))
    if blocks != sorted(parts):
        raise StaleError(
            "nvdra/values.yaml: one block `  # <values of CHART>` … `  # <end>` is needed for each "
            f"of {', '.join(sorted(parts))}; found: {', '.join(blocks) or 'none'}"
        )
    return BLOCK.sub(lambda found: f"{found[1]}{commented(parts[found[2]])}{found[3]}", umbrella)


def commented(part: str) -> str:
    """The values of a part as comments, except those that the umbrella sets itself."""
    text = "\n".join(section.strip("\n") for section in _sections(part))
    return textwrap.indent(f"{text}\n", "  # ", lambda line: bool(line.strip()))


def _sections(part: str) -> Iterator[str]:
    """Each value at the top, with the comments above it."""
    node = yaml.compose(part)
    assert isinstance(node, yaml.MappingNode)
    lines = part.splitlines(keepends=True)
    starts = []
    for key, _ in node.value:
        start = key.start_mark.line
        while start and lines[start - 1].startswith("#"):
            start -= 1
        starts.append((start, key.value))
    ends = [*(start for start, _ in starts[1:]), len(lines)]
    for (start, key), end in zip(starts, ends, strict=True):
        if key not in ("global", "enabled"):
            yield "".join(lines[start:end])


if __name__ == "__main__":
    try:
        complete(CHARTS)
    except StaleError as wrong:
        sys.exit(str(wrong))
