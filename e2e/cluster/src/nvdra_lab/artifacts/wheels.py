"""Collects wheels for images; a build step in a container has no package index.

Our wheels are built from the checkout, all others are downloaded at the versions of
`requirements.lock` for the Python of the base image.
"""

import platform
import shutil
from collections.abc import Mapping
from pathlib import Path

from nvdra_lab import subprocesses
from nvdra_lab.errors import LabError

# Tags that pip accepts for a C library as old as that of the oldest base, newest first.
GLIBC_TAGS = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014")


def build(packages: list[Path], target: Path, path: str, variables: Mapping[str, str]) -> None:
    """Build the wheels of our own packages into `target`."""
    uv = _program("uv", path)
    for package in packages:
        subprocesses.run(
            [uv, "build", "--quiet", "--wheel", "--out-dir", target, package], env=variables
        )


def collect(
    requirements: list[str],
    ours: Path,
    target: Path,
    python: str,
    constraints: Path,
    path: str,
    variables: Mapping[str, str],
) -> None:
    """Put the wheels of some requirements and those they need into `target`, at one version each.

    Args:
        requirements: As "nvdra-gpu-plugin==0.1.0".
        ours: The folder with our own wheels.
        target: The folder to fill.
        python: The version that will install them, "3.11".
        constraints: The lock file.
        path: Where to look for pip.
        variables: The environment of pip: its index and certificates.
    """
    machine = platform.machine()
    platforms = [f"--platform={tag}_{machine}" for tag in GLIBC_TAGS]
    options = [
        "--quiet",
        "--disable-pip-version-check",
        "--only-binary=:all:",
        "--implementation=cp",
        f"--python-version={python}",
        f"--find-links={ours}",
        f"--constraint={constraints}",
        f"--dest={target}",
    ]
    pip = _program("pip", path)
    subprocesses.run([pip, "download", *options, *platforms, *requirements], env=variables)


def _program(name: str, path: str) -> str:
    found = shutil.which(name, path=path)
    if found is None:
        raise LabError(f"{name} is not on PATH: run this through make, or put .tools/bin on PATH")
    return found
