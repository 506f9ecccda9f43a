"""Releases this state of every package in a clone that is thrown away, to see what comes of it.

A package with fragments in changes.d is released: as a minor version if it has additions, changes
or removals, as a patch otherwise, and at its own version if it never was. Then the umbrella is.
What the ranges of the released packages admit is what `sibling_matrix` tries out.
"""

import contextlib
import subprocess
import sys
from pathlib import Path

from scripts import release, release_plan
from scripts.release import REPOSITORY, ReleaseError, Version

AUTHOR = (("user.name", "Rehearsal"), ("user.email", "rehearsal@example.com"))
DEPENDENCIES_FIRST = ("nvdra-api", "nvdra-cdi")


def rehearse(folder: Path, repository: Path = REPOSITORY) -> tuple[Path, dict[str, Version]]:
    """Release what waits to be released, in a clone.

    Returns: The clone, and package → version, the umbrella's included.

    Raises:
        ReleaseError: A release cannot be made; the text names the package.
    """
    clone = folder / "rehearsal"
    _git(repository, "clone", "--quiet", "--no-tags", str(repository), str(clone))
    for key, value in AUTHOR:
        _git(clone, "config", key, value)
    made: dict[str, Version] = {}
    for package in (*packages(clone), release.UMBRELLA):
        try:
            part = next_part(package, clone)
            if part:
                with contextlib.redirect_stdout(sys.stderr):
                    made[package] = release.release(package, part, [], clone)
                release_plan.plan(f"{package}-v{made[package]}", clone)
        except (ReleaseError, release_plan.TagError) as error:
            raise ReleaseError(f"{package}: {error}") from error
    return clone, made


def packages(repository: Path) -> list[str]:
    """All packages, with those first that others depend on."""
    found = sorted(path.parent.name for path in (repository / "packages").glob("*/pyproject.toml"))
    return [*DEPENDENCIES_FIRST, *(each for each in found if each not in DEPENDENCIES_FIRST)]


def next_part(package: str, repository: Path) -> str:
    """What the next release of a package is: minor, patch, its first version; empty for none."""
    current = str(release.current_version(package, repository))
    if (package, current) not in release.rows(repository):
        return current
    if package == release.UMBRELLA:
        return "minor"
    names = [path.name for path in (repository / "packages" / package / "changes.d").glob("*.md")]
    if not names:
        return ""
    is_fix = all(name.split(".")[1] in ("fixed", "security") for name in names if "." in name)
    return "patch" if is_fix else "minor"


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)
