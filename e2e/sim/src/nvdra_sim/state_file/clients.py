"""Who has the simulated driver open: locks on bytes behind the state file.

The simulated NVML holds one for its session, as the real one holds `/dev/nvidiactl`, and one for
each GPU that it has used. The kernel takes them away with the process.

Source: docs/reference/nvml-simulator.md §10.7.
"""

from __future__ import annotations

import fcntl
import os
import struct

from nvdra_sim.state_file import layout
from nvdra_sim.state_file.state import State

_FLOCK = "hhqqi"
"""`struct flock` of Linux on 64-bit machines: type, whence, start, length, process."""


def has_session(state: State) -> bool:
    """Whether a process has an NVML session, so that the module's use count is not 0."""
    return _is_locked(state, layout.SESSION_LOCK)


def has_clients(state: State, gpu: int) -> bool:
    """Whether a process uses the GPU, or has the driver open, and could use it at any time."""
    return has_session(state) or _is_locked(state, layout.CLIENT_LOCKS + gpu)


def _is_locked(state: State, byte: int) -> bool:
    wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    file = os.open(state.path, os.O_RDWR | os.O_CLOEXEC)
    try:
        found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, wanted)
    finally:
        os.close(file)
    return bool(struct.unpack(_FLOCK, found)[0] != fcntl.F_UNLCK)
