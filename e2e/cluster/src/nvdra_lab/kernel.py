"""Settings of the one kernel that all machines share. Effects.

A kubelet sets a few sysctls at its start. `down` gives them back, when no other lab needs them.
"""

from pathlib import Path

SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
_PROC = Path("/proc/sys")


def settings() -> dict[str, str]:
    """The settings a kubelet may change, as they are."""
    return {name: (_PROC / name).read_text().strip() for name in SYSCTLS if (_PROC / name).exists()}


def restore(saved: dict[str, str]) -> None:
    """Set what differs from `saved` back to it."""
    now = settings()
    for name, value in saved.items():
        if now.get(name) != value:
            (_PROC / name).write_text(value)
