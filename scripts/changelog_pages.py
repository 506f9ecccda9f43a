# SPDX-License-Identifier: Apache-2.0
"""The changelogs of packages as pages of the site, with what the next release will add.

A package's CHANGELOG.md has its releases; what came after the last one waits in `changes.d`.
scripts/release.py assembles both, so a page shows what the next release writes.
"""

from pathlib import Path

from scripts import release

MARK = "<!-- towncrier release notes start -->\n"
NOTHING = "\nNothing has changed since the last release.\n"


def text(package: str, repository: Path) -> str:
    """The page of a package."""
    changelog = (repository / "packages" / package / "CHANGELOG.md").read_text()
    heading, mark, released = changelog.partition(MARK)
    waiting = release.next_entry(package, repository)
    body = f"\n{waiting.strip()}\n" if waiting else NOTHING
    return f"{heading}{mark}{body}{released}"
