# SPDX-License-Identifier: Apache-2.0
"""The file systems in memory of an MPS control daemon. These calls block.

`pipe` has its limits because the clients of a daemon must not fill the node's disk by it, and
follows no symbolic link because NVIDIA's daemon, which runs as root in the node's root directory,
opens its files there by their names. `shm` belongs to the clients.
Source: docs/decisions/gpu-plugin.md, "What may a client of MPS do to its directories?".
"""

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_NOSUID: Final = 0x2
_NODEV: Final = 0x4
_NOEXEC: Final = 0x8
_NOSYMFOLLOW: Final = 0x100
"""From Linux 5.10 on. An earlier kernel ignores it."""
_RELATIME: Final = 0x200000
_REMOUNT_BIND: Final = 0x20 | 0x1000
_SHM_FLAGS: Final = _NOSUID | _NODEV | _NOEXEC | _RELATIME
_PIPE_FLAGS: Final = _SHM_FLAGS | _NOSYMFOLLOW
_MNT_DETACH: Final = 2
_ST_NOSYMFOLLOW: Final = 0x2000
_LABEL: Final = "security.selinux"

_PIPE_OPTIONS: Final = "size=1m,nr_inodes=64,mode=755"
"""NVIDIA's daemon makes two sockets, a FIFO, a lock and a file with its process."""
_SHM_INODES: Final = 65536
"""A hard link counts as one. CUDA makes a file or two for each process."""


def mount_pipe(path: Path) -> None:
    """Mount the file system for `pipe`.

    Raises:
        OSError: It cannot be mounted.
    """
    _mount("mps-pipe", path, _PIPE_FLAGS, _PIPE_OPTIONS)


def mount_shm(path: Path, kib: int) -> None:
    """Mount the file system for `shm`, of this size.

    Raises:
        OSError: It cannot be mounted.
    """
    _mount("shm", path, _SHM_FLAGS, f"size={kib}k,nr_inodes={_SHM_INODES}")


def restrict_pipe(path: Path) -> bool:
    """Set the flags of a mounted `pipe` again, for this mount namespace.

    A container runtime may drop some when it mounts the directory into a container.

    Returns:
        Whether symbolic links are not followed. The kernel may be too old.

    Raises:
        OSError: It is no mount.
    """
    _check(_libc().mount(None, os.fsencode(path), None, _REMOUNT_BIND | _PIPE_FLAGS, None), path)
    return bool(os.statvfs(path).f_flag & _ST_NOSYMFOLLOW)


def unmount(path: Path) -> None:
    """Unmount what is mounted at a path. A process that still uses it keeps it.

    Raises:
        OSError: It is still mounted.
    """
    while path.is_mount():
        _check(_libc().umount2(os.fsencode(path), _MNT_DETACH), path)


def attempts(options: str, label: bytes) -> tuple[bytes, ...]:
    """The options of a new file system, in the order in which they are to be tried.

    Args:
        options: What it has on every node.
        label: The SELinux label of the directory that it covers; empty if there is none.
    """
    data = options.encode()
    if not label:
        return (data,)
    # For all files: those that a container makes would otherwise have the categories of its pod,
    # with which the other pods of the claim cannot open them. A kernel without SELinux does not
    # know the option, while labels may still be on the disk.
    return data + b',context="' + label.rstrip(b"\0") + b'"', data


def _mount(source: str, path: Path, flags: int, options: str) -> None:
    label = b""
    with suppress(OSError):  # there is none, or no SELinux
        label = os.getxattr(path, _LABEL)
    for data in attempts(options, label):
        done = _libc().mount(source.encode(), os.fsencode(path), b"tmpfs", flags, data)
        if done == 0:
            break
    _check(done, path)
    if label:
        # The kubelet labels its plugins' directory for containers, and what is made below inherits
        # that. A new file system has a label of its own, which containers may not use.
        with suppress(OSError):  # the node's policy has its own rules, or `context` has set it
            os.setxattr(path, _LABEL, label)


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, path: Path) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
