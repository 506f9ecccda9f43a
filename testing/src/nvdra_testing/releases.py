# SPDX-License-Identifier: Apache-2.0
"""Earlier versions of the packages, built from the commits that docs/releases.md names."""

import io
import re
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[3]
PAGE = REPOSITORY / "docs" / "releases.md"
_GIT = ("git", "-C", str(REPOSITORY))


class Release(NamedTuple):
    """One version of one package.

    Attributes:
        package: For instance `nvdra-cdi`; `nvdra` is the umbrella chart.
        version: For instance `0.1.0`.
        commit: The commit that it is built from.
    """

    package: str
    version: str
    commit: str


def releases() -> list[Release]:
    """Every release, oldest first."""
    rows = re.findall(
        r"^\| ([\w-]+) \| (\d+\.\d+\.\d+) \| \S+ \| ([0-9a-f]{40}) \|$",
        PAGE.read_text(),
        re.MULTILINE,
    )
    return [Release(*row) for row in rows]


def latest(package: str) -> Release:
    """The release of a package before the tree's own state."""
    return [each for each in releases() if each.package == package][-1]


@contextmanager
def checkout(release: Release, folder: Path) -> Iterator[Path]:
    """The tree of a release below `folder`, until the block is left."""
    tree = folder / f"{release.package}-{release.version}"
    _fetch_history()
    worktree = [*_GIT, "worktree"]
    subprocess.run([*worktree, "add", "--quiet", "--detach", tree, release.commit], check=True)
    try:
        yield tree
    finally:
        subprocess.run([*worktree, "remove", "--force", tree], check=True)


def charts(commit: str, folder: Path) -> Path:
    """The directory `charts` of a commit, written below `folder`."""
    _fetch_history()
    argv = [*_GIT, "archive", commit, "charts"]
    done = subprocess.run(argv, check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "charts"


def _fetch_history() -> None:
    """Fetch what a clone with --depth lacks: the commits of releases."""
    shallow = [*_GIT, "rev-parse", "--is-shallow-repository"]
    answer = subprocess.run(shallow, check=True, capture_output=True, text=True)
    if answer.stdout.strip() == "true":
        subprocess.run([*_GIT, "fetch", "--quiet", "--unshallow"], check=True)


def build_wheel(release: Release, folder: Path) -> Path:
    """The wheel of a release, written into `folder`."""
    wheels = folder / "wheels"
    with checkout(release, folder) as tree:
        subprocess.run(
            ["hatch", "--quiet", "build", "-t", "wheel", wheels],
            cwd=tree / "packages" / release.package,
            check=True,
            capture_output=True,
        )
    (wheel,) = wheels.glob(f"{release.package.replace('-', '_')}-{release.version}-*.whl")
    return wheel
