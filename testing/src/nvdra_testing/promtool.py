# SPDX-License-Identifier: Apache-2.0
"""promtool, which checks rules of Prometheus, and Prometheus itself: of Debian's package.

The package would also start a server, so only the programs are taken from it.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

REMEDY = "Prometheus: install it (apt-get install prometheus), or let apt-get download reach Debian"


class PromtoolMissing(Exception):
    """It is not there and cannot be fetched; the message says what to do."""


def path(name: str = "promtool") -> Path:
    """The program, fetched into the build cache if it is not on PATH.

    Args:
        name: `promtool` or `prometheus`.

    Raises:
        PromtoolMissing: It is not there and cannot be fetched.
    """
    if found := shutil.which(name):
        return Path(found)
    caches = Path(os.getenv("XDG_CACHE_HOME") or Path.home() / ".cache")
    program = caches / "nvdra" / "bin" / f"{name}-debian" / name
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as folder:
            (_fetch(Path(folder)) / name).replace(program)
    return program


def _fetch(folder: Path) -> Path:
    download = ["apt-get", "download", "-qq", "prometheus"]
    try:
        if subprocess.run(download, cwd=folder, capture_output=True, check=False).returncode:
            subprocess.run(["apt-get", "update", "-qq"], capture_output=True, check=True)
            subprocess.run(download, cwd=folder, capture_output=True, check=True)
        (package,) = folder.glob("prometheus_*.deb")
        subprocess.run(["dpkg-deb", "-x", package, folder], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise PromtoolMissing(f"there is no {REMEDY}") from error
    return folder / "usr" / "bin"
