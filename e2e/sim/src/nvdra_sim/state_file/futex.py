# SPDX-License-Identifier: Apache-2.0
"""The futex system call, which the Python standard library does not provide."""

from __future__ import annotations

import ctypes
from platform import machine

_SYSTEM_CALL = {"x86_64": 202, "aarch64": 98}
_WAKE = 1
_ALL_WAITERS = 2**31 - 1


def wake(address: int) -> None:
    """Wakes the waiters of all processes on the 32-bit word at an address in a shared mapping."""
    ctypes.CDLL(None).syscall(
        _SYSTEM_CALL[machine()], ctypes.c_void_p(address), _WAKE, _ALL_WAITERS, None, None, 0
    )
