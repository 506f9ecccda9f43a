# SPDX-License-Identifier: Apache-2.0
"""The node's directories proc, sys and dev, and the root of the driver installation.

By default they are `/proc`, `/sys`, `/dev` and `/driver-root`; flags change them. Nothing is
cached. Source: docs/reference/gpu-devices.md, "Locating driver files",
docs/reference/gpu-prepare.md, "Boot id".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LIBRARY_DIRS: Final = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",  # last: where others have libraries of 64 bits, it has those of 32
    "lib",
)

PROGRAM_DIRS: Final = ("opt/bin", "usr/bin", "usr/sbin", "bin", "sbin")

EXAMPLE_ROOTS: Final = (
    "/ for a driver of the host, /run/nvidia/driver for that of the GPU Operator, "
    "/home/kubernetes/bin/nvidia for GKE's on Container-Optimized OS, /opt/nvidia for GKE's on "
    "Ubuntu, /usr/local for that of Talos"
)
"""Source: docs/platforms.md."""

MAX_LINKS = 40
"""The kernel's limit for symbolic links in a path."""


@dataclass(frozen=True, slots=True)
class Host:
    """The paths of the host's directories, as this process sees them.

    Attributes:
        proc: The host's /proc.
        sys: The host's /sys.
        dev: The host's /dev.
        driver_root: Root of the driver installation: `/`, or its mount point in a pod.
        node_driver_root: The same directory's path on the node, for messages; None if it is the
            same path.
    """

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    dev: Path = Path("/dev")
    driver_root: Path = Path("/driver-root")
    node_driver_root: Path | None = None

    def boot_id(self) -> str:
        """ID of the current boot. Hardware state of an earlier boot is gone."""
        return (self.proc / "sys/kernel/random/boot_id").read_text().strip()

    def find_library(self, name: str) -> Path:
        """Find a library of the driver, with its links resolved inside the driver root.

        Raises:
            FileNotFoundError: The library is in none of the directories; the message lists them.
            OSError: It cannot be found out.
        """
        return self._find(name, LIBRARY_DIRS)

    def find_program(self, name: str) -> Path:
        """Find a program of the driver, as `find_library`.

        Raises:
            FileNotFoundError: The program is in none of the directories; the message lists them.
            OSError: It cannot be found out.
        """
        return self._find(name, PROGRAM_DIRS)

    def _find(self, name: str, directories: Sequence[str]) -> Path:
        for directory in ("", *directories):
            found = resolve_in_root(self.driver_root, Path(directory, name))
            if found is not None and found.is_file():
                return found
        if self.driver_root.is_symlink() and not self.driver_root.exists():
            raise FileNotFoundError(
                f"{self._described_root} is a link to {self.driver_root.readlink()}, "
                "which is a path of the node and not of this container: set the chart's "
                "global.nvidiaDriverRoot to it, or make the link a relative one"
            )
        raise FileNotFoundError(
            f"{name} is not in {self._described_root}, nor in its directories "
            f"{', '.join(directories)}; check that the driver is installed, and that its directory "
            f"on the node is the chart's global.nvidiaDriverRoot ({EXAMPLE_ROOTS}), mounted at "
            "--container-driver-root"
        )

    @property
    def _described_root(self) -> str:
        """The driver root as an administrator knows it, and as this process sees it."""
        if self.node_driver_root in (None, self.driver_root):
            return f"the driver root {self.driver_root}"
        return (
            f"the driver root {self.node_driver_root} of the node ({self.driver_root} in this "
            "container)"
        )


def resolve_in_root(root: Path, path: Path) -> Path | None:
    """Resolve every link as a process with the root directory `root` would; None if it is broken.

    An absolute link inside a driver root is relative to that root; the kernel would resolve it in
    the container (docs/reference/gpu-devices.md, "Locating driver files").
    """
    pending = list(reversed(path.parts))
    found: list[str] = []
    links = 0
    while pending:
        part = pending.pop()
        if part == "/":
            found.clear()
        elif part == "..":
            del found[-1:]
        else:
            try:
                target = root.joinpath(*found, part).readlink()
            except FileNotFoundError:
                return None
            except OSError:  # not a link
                found.append(part)
                continue
            links += 1
            if links > MAX_LINKS:
                return None
            pending.extend(reversed(target.parts))
    return root.joinpath(*found)
