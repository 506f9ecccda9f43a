"""Earlier versions of the packages, built from the commits that docs/releases.md names."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[3]
PAGE = REPOSITORY / "docs" / "releases.md"


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
    git = ["git", "-C", str(REPOSITORY)]
    is_shallow = subprocess.run(
        [*git, "rev-parse", "--is-shallow-repository"], check=True, capture_output=True, text=True
    )
    if is_shallow.stdout.strip() == "true":  # a clone with --depth lacks the commit
        subprocess.run([*git, "fetch", "--quiet", "--unshallow"], check=True)
    worktree = [*git, "worktree"]
    subprocess.run([*worktree, "add", "--quiet", "--detach", tree, release.commit], check=True)
    try:
        yield tree
    finally:
        subprocess.run([*worktree, "remove", "--force", tree], check=True)


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
