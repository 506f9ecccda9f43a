# SPDX-License-Identifier: Apache-2.0
"""The changelogs on the site have what is released and what is not yet."""

import shutil
from pathlib import Path

import pytest

from scripts import changelog_pages, release, site_pages

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/CHANGELOG.md"))
NAME = "nvdra-cdi"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one package, which has a release, and nothing since."""
    package = tmp_path / "packages" / NAME
    shutil.copytree(
        ROOT / "packages" / NAME, package, ignore=shutil.ignore_patterns("changes.d", "tests")
    )
    (package / "changes.d").mkdir()
    return tmp_path


def add(tree: Path, name: str, text: str) -> None:
    (tree / "packages" / NAME / "changes.d" / name).write_text(text)


def test_the_page_begins_with_what_the_next_release_adds(tree: Path) -> None:
    add(tree, "a_flag.added.md", "A flag.\n")
    add(tree, "two_words.fixed.md", "A file stays.\n")
    page = changelog_pages.text(NAME, tree)
    version = release.current_version(NAME, tree).final
    waiting = f"## {version} (not released yet)\n\n### Added\n\n- A flag.\n\n### Fixed\n\n"
    assert page.startswith(f"# Changelog of {NAME}\n\n{changelog_pages.MARK}\n{waiting}")
    assert "\n- A file stays.\n" in page
    assert page.index("A file stays.") < page.index("\n## 0.1.0 (")


def test_the_page_says_that_nothing_waits(tree: Path) -> None:
    changelog = (tree / "packages" / NAME / "CHANGELOG.md").read_text()
    mark = changelog_pages.MARK
    assert changelog_pages.text(NAME, tree) == changelog.replace(
        mark, mark + changelog_pages.NOTHING
    )


def test_a_fragment_that_a_release_would_drop_is_an_error(tree: Path) -> None:
    add(tree, "7.broken.md", "It is in no section.\n")
    with pytest.raises(release.ReleaseError, match=r"7\.broken\.md .* would be dropped"):
        changelog_pages.text(NAME, tree)


def test_names_of_fragments_are_left_out_and_numbers_of_issues_stay() -> None:
    text = "- One. (#bounded_json)\n- Two. (#12, #13)\n- Three. (#a, #b_c)\n- Four (#x) goes on.\n"
    assert release.without_names(text) == (
        "- One.\n- Two. (#12, #13)\n- Three.\n- Four (#x) goes on.\n"
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_has_its_page_on_the_site(package: str) -> None:
    source = f"packages/{package}/CHANGELOG.md"
    assert site_pages.OUTSIDE[source] == f"changelogs/{package}.md"
    page = site_pages.outside(source)
    assert page.startswith(f"# Changelog of {package}\n")
    assert (changelog_pages.NOTHING in page) != ("(not released yet)\n" in page)
