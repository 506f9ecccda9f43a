# SPDX-License-Identifier: Apache-2.0
"""The daemon holds its lock while IMEX is READY, and leaves no file that it cannot lock."""

import os
from pathlib import Path

from nvdra_api.ids import PodUID
from nvdra_imex_daemon.process.ready_lock_holder import ReadyLockHolder
from nvdra_runtime.computedomain import ready_lock

POD = PodUID("pod-1")


def is_held(path: Path) -> bool | None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return ready_lock.is_held(directory, [POD])
    finally:
        os.close(directory)


def test_the_lock_follows_readiness(tmp_path: Path) -> None:
    holder = ReadyLockHolder(tmp_path, POD)
    holder.create_file()
    found = [is_held(tmp_path)]
    for is_ready in (True, False, True):
        holder.update(is_ready=is_ready)
        found.append(is_held(tmp_path))
    assert found == [False, True, False, True]


def test_a_directory_that_cannot_be_written_ends_no_daemon(tmp_path: Path) -> None:
    holder = ReadyLockHolder(tmp_path / "missing", POD)
    holder.create_file()
    holder.update(is_ready=True)
    assert is_held(tmp_path) is None


def test_where_files_cannot_be_locked_there_is_no_file(tmp_path: Path) -> None:
    holder = ReadyLockHolder(tmp_path, POD)
    holder.create_file()
    # What else lets the kernel refuse a lock: its descriptor is gone.
    (descriptor,) = [
        int(each.name)
        for each in Path("/proc/self/fd").iterdir()
        if each.is_symlink() and each.readlink() == tmp_path / ready_lock.FILE
    ]
    reading = os.open(os.devnull, os.O_RDONLY)
    os.dup2(reading, descriptor)
    os.close(reading)
    holder.update(is_ready=True)
    assert not (tmp_path / ready_lock.FILE).exists()
    holder.update(is_ready=False)
