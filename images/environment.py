# SPDX-License-Identifier: Apache-2.0
"""The virtual environment of an image, /opt/nvdra: wheels installed by hash, without pip in it."""

import csv
import subprocess
import sys
from pathlib import Path

CONTEXT = Path("/context")
VENV = Path("/opt/nvdra")
TOOLS = Path("/tools")
UNUSED = (
    "kubernetes/client",
    "kubernetes/aio/client/api",
    "kubernetes/aio/client/models",
)
"""Directories of site-packages that nothing imports: the synchronous client, and a class for each
group and kind of the API. They are 120 MiB, and nvdra speaks JSON (nvdra_runtime.kube)."""
KEPT = ("kubernetes/aio/client/models/__init__.py",)
"""What is imported of them."""


def make() -> None:
    """Make the environment, and one with a pip that installs into it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", VENV], check=True)
    subprocess.run([sys.executable, "-m", "venv", TOOLS], check=True)


def install(requirements: Path, python: Path = VENV / "bin" / "python3") -> None:
    """Install what a file lists, by hash."""
    subprocess.run(
        [
            *(TOOLS / "bin" / "pip", "--python", python, "--quiet", "--disable-pip-version-check"),
            *("install", "--no-cache-dir", "--no-compile", "--no-index", "--no-deps"),
            *("--only-binary=:all:", "--require-hashes"),
            *(f"--find-links={folder}" for folder in CONTEXT.iterdir()),
            f"--requirement={requirements}",
        ],
        check=True,
    )


def site_packages() -> Path:
    """Where the distributions of the environment are."""
    (site,) = VENV.glob("lib/python3*/site-packages")
    return site


def remove_programs(*kept: str) -> None:
    """Remove the programs of the environment, but for Python and those whose names begin so."""
    for program in (VENV / "bin").iterdir():
        if not program.name.startswith(("python", *kept)):
            program.unlink()


def remove_unused() -> None:
    """Remove what nothing imports, and its files from the lists of their distributions."""
    site = site_packages()
    for folder in UNUSED:
        if (site / folder).exists():
            _remove(site, site / folder)


def _remove(site: Path, folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif str(path.relative_to(site)) not in KEPT:
            path.unlink()
    name = folder.relative_to(site).parts[0]
    for record in site.glob(f"{name}-*.dist-info/RECORD"):
        rows = [row for row in csv.reader(record.open()) if (site / row[0]).exists()]
        with record.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
