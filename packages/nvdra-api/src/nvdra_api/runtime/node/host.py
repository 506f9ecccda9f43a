"""The node's trees, wherever they are mounted: proc, sys, dev and the driver's root.

In production they are `/proc`, `/sys`, `/dev` and `/driver-root`; flags move them. Nothing is
cached. Source: spec/gpu-devices.md §4, spec/gpu-prepare.md §7.6.
"""

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
)

MAX_LINKS = 40
"""As many as the kernel follows before it gives up."""


@dataclass(frozen=True, slots=True)
class Host:
    """Where things are, as this process sees them.

    Attributes:
        proc: What the host has at /proc.
        sys: What the host has at /sys.
        dev: What the host has at /dev.
        driver_root: Root of the driver installation: `/` or, in a pod, where it is mounted.
    """

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    dev: Path = Path("/dev")
    driver_root: Path = Path("/driver-root")

    def boot_id(self) -> str:
        """Identity of the kernel's current boot: what was set up under another one is gone."""
        return (self.proc / "sys/kernel/random/boot_id").read_text().strip()

    def find_library(self, name: str) -> Path:
        """A library of the driver, its links resolved inside the driver's root.

        Raises:
            FileNotFoundError: It is in none of the places; the message lists them.
        """
        for directory in ("", *LIBRARY_DIRS):
            found = resolve(self.driver_root, Path(directory, name))
            if found is not None and found.is_file():
                return found
        raise FileNotFoundError(
            f"{name} is not in the driver root {self.driver_root}: looked there and in "
            f"{', '.join(LIBRARY_DIRS)}; is the driver installed, and is --container-driver-root "
            "where it is mounted?"
        )


def resolve(root: Path, path: Path) -> Path | None:
    """Follow every link as a process with its root at `root` would; None where nothing is.

    An absolute link inside a driver root means a place in that root; the container's own kernel
    would look for it in the container (spec/gpu-devices.md §4).
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
