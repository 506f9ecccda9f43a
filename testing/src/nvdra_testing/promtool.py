"""promtool, which checks rules of Prometheus: of Debian's package `prometheus`.

The package would also start a server, so only the program is taken from it.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

REMEDY = "install promtool (apt-get install prometheus), or let apt-get download reach Debian"


class PromtoolMissing(Exception):
    """It is not there and cannot be fetched; the message says what to do."""


def path() -> Path:
    """The program, fetched into the build cache if it is not on PATH.

    Raises:
        PromtoolMissing: It is not there and cannot be fetched.
    """
    if found := shutil.which("promtool"):
        return Path(found)
    caches = Path(os.getenv("XDG_CACHE_HOME") or Path.home() / ".cache")
    program = caches / "nvdra" / "bin" / "promtool-debian" / "promtool"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as folder:
            fetched = _fetch(Path(folder))
            fetched.replace(program)
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
        raise PromtoolMissing(f"there is no promtool: {REMEDY}") from error
    return folder / "usr" / "bin" / "promtool"
