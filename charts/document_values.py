# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of values in README files: `python charts/document_values.py`.

The values.yaml of each chart is what is read, its comments are the descriptions. Every chart has
one block `<!-- values: X -->` … `<!-- end -->` in charts/README.md, and one in the README of its
own, which its package contains. A test fails when one of them says something else.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

CHARTS = Path(__file__).parent
README = CHARTS / "README.md"
BLOCK = re.compile(r"(<!-- values: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
FIELDS = {
    "affinity",
    "podSecurityContext",
    "securityContext",
}  # Kubernetes describes what is in them

LONGEST_DEFAULT = 80


def is_field(key: str, value: dict[str, Any]) -> bool:
    """Whether a value is a field of a pod or a container: one value, whatever it contains."""
    return key in FIELDS or (key == "resources" and value.keys() <= {"requests", "limits"})


class Row(NamedTuple):
    """One value: its dotted path, its default as JSON, the comment above it."""

    path: str
    default: str
    description: str


def rows(text: str) -> list[Row]:
    """The values that a user sets, in the order of the file; a list or a filled affinity is one."""
    node = yaml.compose(text)
    assert isinstance(node, yaml.MappingNode)
    return list(_rows(node, yaml.safe_load(text), text.splitlines(), ""))


def _rows(
    mapping: yaml.MappingNode, values: dict[str, Any], lines: list[str], prefix: str
) -> Iterator[Row]:
    for key, node in mapping.value:
        path, value = f"{prefix}{key.value}", values[key.value]
        if isinstance(value, dict) and value and not is_field(key.value, value):
            yield from _rows(node, value, lines, f"{path}.")
        else:
            default = json.dumps(value)
            shown = f"`{default}`" if len(default) < LONGEST_DEFAULT else "see values.yaml"
            yield Row(path, shown, _comment(lines, key.start_mark.line))


def _comment(lines: list[str], line: int) -> str:
    above: list[str] = []
    while (previous := lines[line - len(above) - 1].strip()).startswith("#"):
        above.append(previous.removeprefix("#").strip())
    return " ".join(reversed(above))


def table(chart: str) -> str:
    """The values of a chart as a table in Markdown."""
    (file,) = CHARTS.glob(f"**/{chart}/values.yaml")
    found = rows(file.read_text())
    body = (f"| `{row.path}` | {row.default} | {row.description} |" for row in found)
    return "\n".join(["| Value | Default | What it is |", "|---|---|---|", *body])


def pages() -> dict[Path, list[str]]:
    """Each README with tables, and the charts whose tables it has."""
    charts = sorted(file.parent for file in CHARTS.glob("**/values.yaml"))
    own = {chart / "README.md": [chart.name] for chart in charts}
    return {README: sorted(chart.name for chart in charts), **own}


def documented(page: Path, charts: list[str]) -> str:
    """The text of a README with the table of every chart made anew.

    Raises:
        ValueError: A chart has no block or several, or a block names no chart.
    """
    readme = page.read_text()
    blocks = sorted(found[2] for found in BLOCK.finditer(readme))
    # A block without its end reaches to the end of the next one, whose chart is then missing here.
    if blocks != charts:
        raise ValueError(
            f"{page.relative_to(CHARTS)}: one block <!-- values: X --> … <!-- end --> is needed "
            f"for each of {', '.join(charts)}; found: {', '.join(blocks) or 'none'}"
        )
    return BLOCK.sub(lambda found: f"{found[1]}{table(found[2])}\n{found[3]}", readme)


if __name__ == "__main__":
    try:
        for page, text in [(page, documented(page, charts)) for page, charts in pages().items()]:
            page.write_text(text)
    except ValueError as wrong:
        sys.exit(str(wrong))
