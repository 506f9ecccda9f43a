# SPDX-License-Identifier: Apache-2.0
"""The base of the project's images, in which they are assembled: pulled, or a Debian made here."""

import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from nvdra_lab import subprocesses
from nvdra_lab.artifacts.buildah import Buildah
from nvdra_lab.progress import Progress

DEFAULT = "docker.io/library/python:3.12-slim"
DEBIAN = "localhost/nvdra/debian-python:bookworm-kmod"
REGISTRY = "https://registry-1.docker.io/v2/"
PROBE_S = 3.0


def choose(buildah: Buildah, wanted: str, temporary: Path, progress: Progress) -> str:
    """Choose the base image.

    Args:
        buildah: Gets the base image if it is built here.
        wanted: "auto", or an image that `buildah` can pull.
        temporary: A directory with a gigabyte of free space.
        progress: Reports what takes time.

    Raises:
        LabError: debootstrap failed.
    """
    if wanted != "auto":
        return wanted
    if buildah.exists(DEBIAN):
        return DEBIAN
    if registry_answers():
        return DEFAULT
    with progress.step("a base image by debootstrap: no registry answers", "about 1 min"):
        _bootstrap(buildah, temporary)
    return DEBIAN


def registry_answers() -> bool:
    """Whether images can be pulled; an error for missing credentials counts as an answer."""
    try:
        with urllib.request.urlopen(REGISTRY, timeout=PROBE_S):
            return True
    except urllib.error.HTTPError as refusal:
        return refusal.code in (401, 403)
    except OSError:
        return False


def _bootstrap(buildah: Buildah, temporary: Path) -> None:
    with tempfile.TemporaryDirectory(dir=temporary) as folder:
        tree = Path(folder) / "debian"
        subprocesses.run(
            [
                *("nice", "-n", "10", "debootstrap", "--variant=minbase"),
                *("--include=python3,python3-venv,kmod", "bookworm", tree),
            ]
        )
        buildah.import_tree(DEBIAN, tree)
