# SPDX-License-Identifier: Apache-2.0
"""The limit of open files of this process, of which each connection is one."""

import resource
from functools import cache
from typing import Final

CEILING: Final = 65_536
"""The most that a process asks for. Some node's hard limit is 1,073,741,816, and a program that
closes every possible descriptor before it executes another takes minutes there."""


def raise_soft_limit() -> int:
    """Raise the soft limit to the hard one, at most to `CEILING`, and return the soft limit.

    systemd's default, and so that of containers, is a soft limit of 1024: for programs that use
    select(2), which this one does not.
    """
    soft, hard = _at_start()
    wanted = CEILING if hard == resource.RLIM_INFINITY else min(hard, CEILING)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft if soft != resource.RLIM_INFINITY else CEILING
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def restore_soft_limit(pid: int) -> None:
    """Give a child process the limits that this process was started with.

    A program of others may use select(2), which corrupts memory from descriptor 1024 on. The Go
    runtime, and so the reference driver, does the same.
    """
    resource.prlimit(pid, resource.RLIMIT_NOFILE, _at_start())


def soft_limit() -> int:
    """The soft limit now."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CEILING if soft == resource.RLIM_INFINITY else soft


@cache
def _at_start() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)
