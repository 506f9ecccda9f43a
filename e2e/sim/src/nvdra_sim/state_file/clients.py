# SPDX-License-Identifier: Apache-2.0
"""Who has the simulated driver open: locks on bytes behind the state file.

The simulated NVML holds one for its session, as the real one holds `/dev/nvidiactl`, and one for
each GPU that it has used. The simulated CUDA holds one for each device on which its process
computes. The kernel takes them away with the process.

Source: docs/reference/nvml-simulator.md §10.7, §17.
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


def has_sysfs_server(state: State) -> bool:
    """Whether a server answers for the node's PCI bus, so that writes to its files work."""
    return _is_locked(state, layout.SYSFS_SERVER_LOCK)


def uses_gpu(state: State, gpu: int) -> bool:
    """Whether a process uses the GPU through the simulated NVML or CUDA."""
    return _is_locked(state, layout.CLIENT_LOCKS + gpu)


def lock_for_server(state: State) -> int:
    """Marks this process as the server of the node's PCI bus, until the descriptor is closed.

    Raises:
        BlockingIOError: Another process is the server.
    """
    file = os.open(state.path, os.O_RDWR | os.O_CLOEXEC)
    lock = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, layout.SYSFS_SERVER_LOCK, 1, 0)
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
    except OSError:
        os.close(file)
        raise
    return file


def has_whole_context(state: State, gpu: int) -> bool:
    """Whether a process, for example an MPS server, computes on the GPU as a whole."""
    return _is_locked(state, layout.CONTEXT_LOCKS + gpu)


def has_contexts(state: State, gpu: int, gpu_instance: int, compute_instance: int | None) -> bool:
    """Whether a process computes on the MIG device, or on any of the GPU instance with None."""
    instances = layout.MAX_COMPUTE_INSTANCES
    first = layout.INSTANCE_CONTEXT_LOCKS
    first += (gpu * layout.MAX_GPU_INSTANCES + gpu_instance) * instances
    if compute_instance is None:
        return _is_locked(state, first, instances)
    return _is_locked(state, first + compute_instance)


def _is_locked(state: State, byte: int, count: int = 1) -> bool:
    wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, byte, count, 0)
    file = os.open(state.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, wanted)
    finally:
        os.close(file)
    return bool(struct.unpack(_FLOCK, found)[0] != fcntl.F_UNLCK)
