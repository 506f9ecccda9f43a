# SPDX-License-Identifier: Apache-2.0
"""What must agree before a release, and which siblings a component may be installed with."""

import re
import shutil
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from scripts import release, release_check, release_rehearsal, sibling_matrix
from scripts.release_check import Artifact
from scripts.sibling_matrix import Combination, NothingAdmittedError

ROOT = Path(__file__).parents[2]
FILES = (
    "packages/*/pyproject.toml",
    "packages/*/CHANGELOG.md",
    "packages/*/changes.d/*.md",
    "packages/*/src/*/__about__.py",
    "charts/nvdra/Chart.yaml",
    "charts/nvdra/charts/*/Chart.yaml",
    "docs/releases.md",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files of this repository that versions are in; its history is left out."""
    for pattern in FILES:
        for source in ROOT.glob(pattern):
            target = tmp_path / source.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    page = tmp_path / "docs/releases.md"
    page.write_text(re.sub(r"[0-9a-f]{40}", "0" * 40, page.read_text()))
    return tmp_path


def problems(tree: Path) -> list[str]:
    """All but those of commits, which a tree without a history cannot have."""
    return [each for each in release_check.tree_problems(tree) if "is not what commit" not in each]


def edit(tree: Path, path: str, old: str, new: str) -> None:
    file = tree / path
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_this_tree_can_be_released() -> None:
    assert release_check.tree_problems(ROOT) == []
    assert release_check.matrix_problems(ROOT) == []


CHART = "charts/nvdra/charts/nvdra-cd-controller/Chart.yaml"


@pytest.mark.parametrize(
    ("path", "old", "new", "expected"),
    [
        (CHART, "appVersion: ", "appVersion: 9", "nvdra-cd-controller: Chart.yaml has appVersion"),
        (
            "charts/nvdra/Chart.yaml",
            "name: nvdra-cd-plugin\n    version: ",
            "name: nvdra-cd-plugin\n    version: 9",
            "nvdra: it depends on nvdra-cd-plugin 9",
        ),
        (CHART, "nvdra-imex-daemon: ", "nvdra-imex-daemon: 9", "annotation says nvdra-imex-daemon"),
        ("charts/nvdra/Chart.yaml", "  nvdra-cdi: ", "  other: ", "do not name nvdra-cdi: add it"),
        ("packages/nvdra-cdi/CHANGELOG.md", "## 0.1.0 ", "## ", "no entry for 0.1.0"),
    ],
)
def test_what_does_not_agree_is_named(
    tree: Path, path: str, old: str, new: str, expected: str
) -> None:
    assert problems(tree) == []
    edit(tree, path, old, new)
    (problem,) = problems(tree)
    assert expected in problem


def test_a_fragment_that_would_be_dropped_is_named(tree: Path) -> None:
    (tree / "packages/nvdra-cdi/changes.d/8.news.md").write_text("It does more.\n")
    (problem,) = problems(tree)
    assert "8.news.md" in problem
    assert "would be dropped in silence" in problem


def test_a_release_of_another_commit_is_named(tree: Path) -> None:
    found = release_check.tree_problems(tree)
    assert len(found) == sum(f"is not what commit {'0' * 10} has" in each for each in found) > 5


def test_a_range_that_admits_nothing_is_named(tree: Path) -> None:
    admitted = release.current_version("nvdra-api", tree).compatible_range
    edit(tree, "packages/nvdra-webhook/pyproject.toml", admitted, ">=7,<8")
    (problem,) = release_check.matrix_problems(tree)
    assert "nvdra-webhook needs nvdra-api<8,>=7, and there are only" in problem


def test_a_tree_that_calls_itself_a_release_is_named(tree: Path) -> None:
    version = str(release.current_version("nvdra-cdi", tree).final)
    page = tree / "docs/releases.md"
    page.write_text(f"{page.read_text()}| nvdra-cdi | {version} | 2026-01-01 | {'0' * 40} |\n")
    changelog = tree / "packages/nvdra-cdi/CHANGELOG.md"
    changelog.write_text(changelog.read_text() + f"\n## {version} (2026-01-01)\n")
    assert problems(tree) == []
    release.write_version("nvdra-cdi", release.current_version("nvdra-cdi", tree).final, tree)
    (problem,) = problems(tree)
    assert problem.startswith(f"nvdra-cdi: {version} is released, and this tree has more: set ")


@pytest.mark.parametrize("package", ["nvdra-webhook", "nvdra-cdi"])
def test_the_page_says_which_packages_have_no_release(tree: Path, package: str) -> None:
    page = tree / "docs/releases.md"
    row = release.waiting_row(package)
    is_there = row in page.read_text()
    page.write_text(page.read_text().replace(row, "") if is_there else page.read_text() + row)
    (problem,) = problems(tree)
    assert problem.endswith(f"name the releases of {package}, or say that there is none")


def test_a_page_that_would_be_published_with_a_false_sentence_is_named(tree: Path) -> None:
    assert release_check.publication_problems(ROOT) == []
    page = tree / "packages/nvdra-cdi/README.md"
    page.write_text("# nvdra-cdi\n\nUse it. No wheel is published\nyet: build one.\n")
    (problem,) = release_check.publication_problems(tree)
    assert problem.startswith("packages/nvdra-cdi/README.md: it would be published with a false ")
    assert "No wheel is published\\nyet" in problem


def test_nothing_in_the_tree_has_the_version_of_a_release() -> None:
    for package in (*release_rehearsal.packages(ROOT), "nvdra"):
        assert not release.current_version(package, ROOT).is_final


KNOWN = {"nvdra-api": ["0.2.0", "0.10.0", "0.3.1", "0.3.0"], "nvdra-cdi": ["0.1.0"]}


def test_a_component_is_tried_with_the_oldest_and_the_newest_that_it_admits() -> None:
    ranges = {"nvdra-api": SpecifierSet(">=0.3,<1"), "nvdra-cdi": SpecifierSet(">=0.1,<0.2")}
    assert sibling_matrix.combinations("x", ranges, KNOWN) == [
        Combination("x", (("nvdra-api", "0.3.0"), ("nvdra-cdi", "0.1.0"))),
        Combination("x", (("nvdra-api", "0.10.0"), ("nvdra-cdi", "0.1.0"))),
    ]


def test_a_component_that_admits_one_version_is_tried_with_it_once() -> None:
    one = sibling_matrix.combinations("x", {"nvdra-api": SpecifierSet("<0.3")}, KNOWN)
    assert list(map(str, one)) == ["x nvdra-api==0.2.0"]
    assert list(map(str, sibling_matrix.combinations("x", {}, KNOWN))) == ["x"]


def test_a_component_that_admits_none_is_refused() -> None:
    with pytest.raises(NothingAdmittedError, match="widen the range"):
        sibling_matrix.combinations("x", {"nvdra-cdi": SpecifierSet(">=2")}, KNOWN)


def test_what_was_not_built_is_named() -> None:
    packages = release_rehearsal.packages(ROOT)
    images = [each for each in packages if (ROOT / "packages" / each / "Dockerfile").exists()]
    wanted = [("wheel", each) for each in packages] + [("image", each) for each in images]
    wanted += [("chart", each) for each in release_check.charts(ROOT)]
    built = [Artifact(kind, name, "0.1.0", "", 1, "x") for kind, name in wanted]
    assert list(release_check.missing(built, ROOT)) == []
    assert (len(packages), len(images), len(release_check.charts(ROOT))) == (8, 5, 5)
    (problem,) = release_check.missing(built[:-1], ROOT)
    assert problem.startswith(f"{wanted[-1][1]}: its chart was not built")
