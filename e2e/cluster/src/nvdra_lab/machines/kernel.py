# SPDX-License-Identifier: Apache-2.0
"""Settings of the kernel, which all machines share.

A kubelet sets a few sysctls at its start, and `lab up` raises limits that many nodes exceed. `down`
restores them when no other lab needs them.
"""

from pathlib import Path

from nvdra_lab.machines import inotify

SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    *(limit.path for limit in inotify.LIMITS),
)
_PROC = Path("/proc/sys")


def settings() -> dict[str, str]:
    """The current values of the settings that a lab may change."""
    return {name: (_PROC / name).read_text().strip() for name in SYSCTLS if (_PROC / name).exists()}


def restore(saved: dict[str, str]) -> None:
    """Restore the settings that differ from `saved`."""
    now = settings()
    for name, value in saved.items():
        if now.get(name) != value:
            (_PROC / name).write_text(value)
