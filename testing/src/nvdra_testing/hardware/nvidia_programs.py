# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own programs that run without a GPU, from Debian's packages.

apt has its lists, its cache and its sources in a directory of the test: nothing of the machine's
apt is read or changed, and nothing is installed.
"""

import subprocess
from pathlib import Path
from typing import Final

MPS_PACKAGE: Final = "nvidia-cuda-mps"
SUITES: Final = {"535": "bookworm", "550": "trixie"}
"""Which suite of Debian has a branch of the driver."""

_ARCHIVE: Final = "http://deb.debian.org/debian"
_KEYS: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"
_TIMEOUT_S: Final = 120


class DebianArchive:
    """Debian's non-free packages of some suites.

    Attributes:
        directory: Everything is below it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("etc/preferences.d", "state/lists/partial", "cache/archives/partial"):
            (directory / name).mkdir(parents=True)
        sources = directory / "etc/sources.list"
        sources.write_text(
            "".join(
                f"deb [signed-by={_KEYS}] {_ARCHIVE} {suite} non-free\n"
                for suite in SUITES.values()
            )
        )
        settings = {
            "Dir::Etc": directory / "etc",
            "Dir::Etc::sourcelist": sources,
            "Dir::Etc::sourceparts": "-",
            "Dir::State": directory / "state",
            "Dir::Cache": directory / "cache",
            "APT::Sandbox::User": "root",
        }
        self._options = [
            word for key, value in settings.items() for word in ("-o", f"{key}={value}")
        ]
        self._run("update", "-qq")

    def unpack(self, package: str, suite: str) -> Path:
        """Download a package, and unpack it. Returns the directory with its files."""
        found = self.directory / suite
        found.mkdir()
        self._run("download", "-qq", f"{package}/{suite}", cwd=found)
        (archive,) = found.glob("*.deb")
        subprocess.run(["dpkg", "-x", archive, found], check=True, timeout=_TIMEOUT_S)
        return found

    def _run(self, *arguments: str, cwd: Path | None = None) -> None:
        subprocess.run(
            ["apt-get", *self._options, *arguments], check=True, cwd=cwd, timeout=_TIMEOUT_S
        )
