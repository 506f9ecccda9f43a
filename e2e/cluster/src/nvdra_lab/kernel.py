"""What a kubelet changes in the one kernel all machines share: settings and cgroups. Effects.

A kubelet sets a few sysctls at its start. `down` gives them back, when no other lab needs them.
"""

import time
from pathlib import Path

from nvdra_lab.errors import LabError

SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
_PROC = Path("/proc/sys")
_CGROUPS = Path("/sys/fs/cgroup")


def settings() -> dict[str, str]:
    """The settings a kubelet may change, as they are."""
    return {name: (_PROC / name).read_text().strip() for name in SYSCTLS if (_PROC / name).exists()}


def restore(saved: dict[str, str]) -> None:
    """Set what differs from `saved` back to it."""
    now = settings()
    for name, value in saved.items():
        if now.get(name) != value:
            (_PROC / name).write_text(value)


def remove_cgroups(name: str) -> None:
    """Remove the cgroup folder `/<name>` of every hierarchy, with all below it.

    Raises:
        LabError: A process is still in one.
    """
    deadline = time.monotonic() + 10
    while remaining := [tree for tree in _trees(name) if not _removed(tree)]:
        if time.monotonic() > deadline:
            raise LabError(f"cgroups are still in use: {', '.join(map(str, remaining))}")
        time.sleep(0.05)


def _trees(name: str) -> list[Path]:
    """With version 1 each controller has its hierarchy, version 2 has one at the root."""
    roots = [_CGROUPS, *(root for root in _CGROUPS.iterdir() if root.is_dir())]
    return [
        root / name
        for root in dict.fromkeys(root.resolve() for root in roots)
        if (root / name).is_dir()
    ]


def _removed(tree: Path) -> bool:
    for folder in sorted((path for path in tree.rglob("*") if path.is_dir()), reverse=True):
        if not _rmdir(folder):
            return False
    return _rmdir(tree)


def _rmdir(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
