# SPDX-License-Identifier: Apache-2.0
"""Releases this state of every package in a clone that is thrown away, to see what comes of it.

All are released as the version that the tree is on its way to, and the umbrella with them. What the
ranges of the released packages admit is what `sibling_matrix` tries out.
"""

import contextlib
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from scripts import publication, release, release_plan
from scripts.release import REPOSITORY, ReleaseError, Version

AUTHOR = (("user.name", "Rehearsal"), ("user.email", "rehearsal@example.com"))
EXAMPLE = ("https://git.example.com/owner/nvdra", "registry.example.com/owner")
"""The repository and the registry that a rehearsal publishes to."""
DEPENDENCIES_FIRST = ("nvdra-api", "nvdra-cdi")


def rehearse(folder: Path, repository: Path = REPOSITORY) -> tuple[Path, dict[str, Version]]:
    """Release what waits to be released, in a clone.

    Returns: The clone at the last tag, and package → version, the umbrella's included.

    Raises:
        ReleaseError: A release cannot be made; the text names the package.
    """
    clone = folder / "rehearsal"
    _git(repository, "clone", "--quiet", "--no-tags", str(repository), str(clone))
    for key, value in AUTHOR:
        _git(clone, "config", key, value)
    everything = (*packages(clone), release.UMBRELLA)
    with contextlib.redirect_stdout(sys.stderr):
        made = release.release(everything, "minor", [], clone)
    checkout(clone, made)
    for package, version in made.items():
        try:
            release_plan.plan(f"{package}-v{version}", clone)
        except release_plan.TagError as error:
            raise ReleaseError(f"{package}: {error}") from error
    return clone, made


def checkout(clone: Path, made: Mapping[str, Version]) -> None:
    """Check out the state in which everything is released; the branch has one commit more."""
    _git(clone, "checkout", "--quiet", f"{release.UMBRELLA}-v{made[release.UMBRELLA]}")


def publish(clone: Path, made: Mapping[str, Version]) -> None:
    """Write into the released state where it is published, as the workflow does.

    Raises:
        ReleaseError: It cannot be written.
    """
    tag = f"{release.UMBRELLA}-v{made[release.UMBRELLA]}"
    try:
        publication.write(publication.place(*EXAMPLE, tag), clone)
    except publication.PublicationError as error:
        raise ReleaseError(f"scripts/publication.py: {error}") from error


def checkout_next(clone: Path) -> None:
    """Check out what a developer has after the release; what `publish` has written is gone."""
    _git(clone, "checkout", "--quiet", "--force", "-")


def packages(repository: Path) -> list[str]:
    """All packages, with those first that others depend on."""
    found = sorted(path.parent.name for path in (repository / "packages").glob("*/pyproject.toml"))
    return [*DEPENDENCIES_FIRST, *(each for each in found if each not in DEPENDENCIES_FIRST)]


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)
