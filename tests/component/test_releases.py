# SPDX-License-Identifier: Apache-2.0
"""The release script in a clone of this repository, and the versions in docs/releases.md."""

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from nvdra_testing import charts, releases

Run = Callable[..., "subprocess.CompletedProcess[str]"]
PACKAGE = "nvdra-cdi"
ABOUT = f"packages/{PACKAGE}/src/nvdra_cdi/__about__.py"
GPU_PLUGIN = ("nvdra-api", "nvdra-cdi", "nvdra-gpu-plugin")
"""The plugin, and what is released with it because it needs it."""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of the repository in which releases harm nobody; nothing waits to be released."""
    folder = tmp_path / "clone"
    source = str(releases.REPOSITORY)
    subprocess.run(["git", "clone", "--quiet", "--no-tags", source, folder], check=True)
    for key, value in (("user.name", "Releaser"), ("user.email", "releaser@example.com")):
        subprocess.run(["git", "-C", folder, "config", key, value], check=True)
    return folder


@pytest.fixture
def release(clone: Path) -> Run:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        script = clone / "scripts" / "release.py"
        argv = [sys.executable, str(script), *arguments]
        return subprocess.run(argv, cwd=clone, capture_output=True, text=True, check=False)

    return run


def add_change(clone: Path, name: str = "7.added.md", text: str = "It does more.") -> None:
    folder = clone / "packages" / PACKAGE / "changes.d"
    folder.mkdir(exist_ok=True)  # git keeps no empty folder
    (folder / name).write_text(text + "\n")
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "-m", "A change that users notice")


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", folder, *arguments], capture_output=True, text=True, check=True
    ).stdout


def about(clone: Path) -> str:
    return (clone / ABOUT).read_text()


def test_a_release_has_a_changelog_entry_a_tag_a_row_and_a_wheel(clone: Path, release: Run) -> None:
    add_change(clone, "two_words.added.md")
    done = release(PACKAGE, "9.9.9", "--artifacts", "wheel")
    assert done.returncode == 0, done.stderr

    assert '"9.9.9"' in git(clone, "show", f"{PACKAGE}-v9.9.9:{ABOUT}")
    assert '"9.10.0.dev0"' in about(clone)
    changelog = (clone / "packages" / PACKAGE / "CHANGELOG.md").read_text()
    assert "## 9.9.9" in changelog
    assert "\n- It does more.\n" in changelog, "without the name of the fragment"
    assert not list((clone / "packages" / PACKAGE / "changes.d").glob("*.md"))
    tagged = git(clone, "rev-parse", f"{PACKAGE}-v9.9.9^{{commit}}").strip()
    page = (clone / "docs" / "releases.md").read_text()
    assert f"| {PACKAGE} | 9.9.9 |" in page
    assert tagged in page
    wheel = clone / "dist" / "nvdra_cdi-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        assert '"9.9.9"' in archive.read("nvdra_cdi/__about__.py").decode()
    assert git(clone, "status", "--porcelain", "--untracked-files=no") == ""


def test_the_artifacts_of_a_release_say_where_they_are_published_and_the_tree_does_not(
    clone: Path, release: Run
) -> None:
    add_change(clone)
    page, registry = "https://git.example.com/team/nvdra", "registry.example.com/team"
    where = (f"--repository={page}", f"--registry={registry}")
    done = release(PACKAGE, "9.9.9", "--artifacts=wheel", *where)
    assert done.returncode == 0, done.stderr
    (wheel,) = (clone / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("/METADATA"))
        told = archive.read(name).decode()
    assert f"Project-URL: Source, {page}/tree/{PACKAGE}-v9.9.9/packages/{PACKAGE}\n" in told
    tree = git(clone, "show", f"{PACKAGE}-v9.9.9:packages/{PACKAGE}/pyproject.toml")
    assert "example.com" not in tree
    assert git(clone, "worktree", "list").count("\n") == 1


def test_an_address_that_cannot_be_published_is_named(clone: Path, release: Run) -> None:
    add_change(clone)
    before = git(clone, "rev-parse", "HEAD")
    done = release(PACKAGE, "9.9.9", "--artifacts=wheel", "--repository=nvdra", "--registry=x")
    assert done.returncode == 1
    assert "write it as https://github.com/OWNER/nvdra" in done.stderr
    assert git(clone, "rev-parse", "HEAD") == before
    half = release(PACKAGE, "9.9.9", "--repository=https://git.example.com/team/nvdra")
    assert half.returncode == 2
    assert "--repository and --registry are given together" in half.stderr


def test_a_release_widens_the_ranges_of_packages_that_depend_on_it(
    clone: Path, release: Run
) -> None:
    add_change(clone)
    assert release(PACKAGE, "9.9.9").returncode == 0
    path = "packages/nvdra-gpu-plugin/pyproject.toml"
    assert '"nvdra-cdi>=9.9,<10"' in git(clone, "show", f"{PACKAGE}-v9.9.9:{path}")
    now = (clone / path).read_text()
    assert '"nvdra-cdi>=9.10.0.dev0,<10"' in now
    assert '"nvdra-api[plugin]>=0.' in now


def test_a_release_of_a_component_sets_its_chart_and_the_umbrellas_dependency(
    clone: Path, release: Run
) -> None:
    folder = clone / "packages" / "nvdra-gpu-plugin" / "changes.d"
    folder.mkdir(exist_ok=True)
    (folder / "7.fixed.md").write_text("It works.\n")
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "-m", "A change that users notice")
    done = release(*GPU_PLUGIN, "9.9.9", "--artifacts", "chart")
    assert done.returncode == 0, done.stderr
    place = charts.folder("nvdra-gpu-plugin", Path("charts"))
    for version, commit in (("9.9.9", "nvdra-gpu-plugin-v9.9.9"), ("9.10.0-dev", "HEAD")):
        chart = git(clone, "show", f"{commit}:{place}/Chart.yaml")
        assert f"version: {version}\nappVersion: {version}\n" in chart
        umbrella = git(clone, "show", f"{commit}:charts/nvdra/Chart.yaml")
        assert f"- name: nvdra-gpu-plugin\n    version: {version}\n" in umbrella
        assert f"version: {version}" not in umbrella.split("dependencies:")[0]
    assert (clone / "dist" / "nvdra-gpu-plugin-9.9.9.tgz").exists()


def test_a_package_is_released_with_what_it_needs(clone: Path, release: Run) -> None:
    before = git(clone, "rev-parse", "HEAD")
    done = release("nvdra-gpu-plugin", "nvdra-cdi", "minor")
    assert done.returncode == 1
    assert "nvdra-gpu-plugin depends on nvdra-api, of which the tree has 0." in done.stderr
    assert git(clone, "rev-parse", "HEAD") == before


def test_a_version_is_released_once(clone: Path, release: Run) -> None:
    add_change(clone)
    assert release(PACKAGE, "9.9.9").returncode == 0
    add_change(clone, "8.fixed.md", "It works.")
    again = release(PACKAGE, "9.9.9")
    assert again.returncode == 1
    assert "9.9.9 is not newer than 9.10.0-dev, which the tree has" in again.stderr


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", "is empty: write what the person who upgrades notices"),
        ("8.news.md", "8.news.md in packages/nvdra-cdi/changes.d would be dropped in silence"),
    ],
    ids=["no fragment", "a fragment that towncrier drops"],
)
def test_a_release_without_a_proper_changelog_is_refused_and_changes_nothing(
    clone: Path, release: Run, name: str, expected: str
) -> None:
    for fragment in (clone / "packages" / PACKAGE / "changes.d").glob("*.md"):
        fragment.unlink()
    with (clone / "packages" / PACKAGE / "README.md").open("a") as readme:
        readme.write("\n")
    git(clone, "commit", "--quiet", "--all", "-m", "No fragments")
    if name:
        add_change(clone, name)
    before = git(clone, "rev-parse", "HEAD")
    done = release(PACKAGE, "minor")
    assert done.returncode == 1
    assert expected in done.stderr
    assert git(clone, "rev-parse", "HEAD") == before
    assert git(clone, "status", "--porcelain") == ""


def test_a_tree_with_changes_is_not_released(clone: Path, release: Run) -> None:
    (clone / "README.md").write_text("mine\n")
    done = release(PACKAGE, "minor")
    assert done.returncode == 1
    assert "changes that are not committed" in done.stderr
    assert (clone / "README.md").read_text() == "mine\n"


def test_an_unknown_package_is_refused_with_the_known_ones(release: Run) -> None:
    done = release("nvdra-typo", "minor")
    assert done.returncode == 1
    assert "there is no package nvdra-typo; known: nvdra-api, nvdra-cd-controller" in done.stderr


def test_every_package_and_the_umbrella_are_released_or_wait_for_their_first_release() -> None:
    packages = {path.name: path for path in (releases.REPOSITORY / "packages").iterdir()}
    waiting = {name for name, path in packages.items() if any(path.glob("changes.d/*.md"))}
    released = {each.package for each in releases.releases()}
    assert released <= {*packages, "nvdra"}
    assert {*packages, "nvdra"} - released <= waiting


@pytest.mark.parametrize("package", ["nvdra-api", "nvdra-cdi", "nvdra-gpu-plugin"])
def test_the_latest_release_is_built_from_the_commit_that_the_page_names(
    package: str, tmp_path: Path
) -> None:
    release = releases.latest(package)
    wheel = releases.build_wheel(release, tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        (about,) = (name for name in archive.namelist() if name.endswith("__about__.py"))
        assert f'"{release.version}"' in archive.read(about).decode()
