# SPDX-License-Identifier: Apache-2.0
"""Copies the templates that charts have in common into them: `python charts/share_templates.py`.

charts/shared is what is edited. A chart takes a file from there by having one of that name. They
are copies and not links, because helm 3 prints a line about each link before every message of its
own. A test fails when a copy differs.
"""

import shutil
from pathlib import Path

CHARTS = Path(__file__).parent


def copies(charts: Path) -> list[tuple[Path, Path]]:
    """Each copy in a chart, with the file in charts/shared that it is made from."""
    shared = {source.name: source for source in (charts / "shared").iterdir()}
    found = sorted(charts.glob("nvdra/**/templates/_*.tpl"))
    return [(file, shared[file.name]) for file in found if file.name in shared]


if __name__ == "__main__":
    for copy, source in copies(CHARTS):
        shutil.copyfile(source, copy)
