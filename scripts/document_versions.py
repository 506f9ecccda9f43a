# SPDX-License-Identifier: Apache-2.0
"""Writes the table of docs/versions.md: which versions of the packages belong together.

    python -m scripts.document_versions

A release of the umbrella chart releases everything that the tree has more than before, so that
what belongs to it is, of each package, the last version above its row in docs/releases.md.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from scripts.release import RELEASES, REPOSITORY, UMBRELLA

PAGE = Path("docs/versions.md")
NONE = "-"
ROW = re.compile(r"^\| ([\w-]+) \| (\d+\.\d+\.\d+) \| ([\d-]+) \| \w+ \|$", re.MULTILINE)
TABLE = re.compile(rf"^\| {UMBRELLA} \|.*\n(?:\|.*\n)*", re.MULTILINE)


class Together(NamedTuple):
    """A release of the umbrella chart, and package → version of what belongs to it."""

    version: str
    date: str
    packages: dict[str, str]


def together(releases: str) -> Iterator[Together]:
    """Each release of the umbrella chart, oldest first, from the text of docs/releases.md."""
    latest: dict[str, str] = {}
    for package, version, date in ROW.findall(releases):
        if package == UMBRELLA:
            yield Together(version, date, dict(latest))
        else:
            latest[package] = version


def table(repository: Path) -> str:
    """A row for each release of the umbrella chart, the newest first."""
    names = sorted(path.name for path in (repository / "packages").iterdir() if path.is_dir())
    lines = [[UMBRELLA, "date", *names], ["---"] * (len(names) + 2)]
    for release in reversed(list(together((repository / RELEASES).read_text()))):
        versions = (release.packages.get(name, NONE) for name in names)
        lines.append([release.version, release.date, *versions])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page(repository: Path) -> str:
    """The page as it should be."""
    written = (repository / PAGE).read_text()
    return TABLE.sub(lambda _: table(repository), written)


def main() -> None:
    """Write the page."""
    (REPOSITORY / PAGE).write_text(page(REPOSITORY))


if __name__ == "__main__":
    main()
