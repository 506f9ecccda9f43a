# SPDX-License-Identifier: Apache-2.0
import errno
import os
import time
from pathlib import Path

from nvdra_gpu_plugin.passthrough.sysfs_writer import BLOCKED, CLEAR, SysfsWriter

PATIENCE_S = 30.0


def test_writes_one_after_the_other(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "a\nsecond"
    first.touch()
    with SysfsWriter() as writer:
        assert writer.write(first, "0000:3b:00.0", PATIENCE_S) == 0
        assert writer.write(tmp_path / "none", "x", PATIENCE_S) == errno.ENOENT
        assert writer.write(Path("/dev/full"), "x", PATIENCE_S) == errno.ENOSPC
        assert first.read_text() == "0000:3b:00.0"
        assert not writer.has_ended()
    assert writer.has_ended()
    assert not second.exists()


def test_an_override_is_cleared_with_a_newline(tmp_path: Path) -> None:
    file = tmp_path / "driver_override"
    file.touch()
    with SysfsWriter() as writer:
        assert writer.write(file, CLEAR, PATIENCE_S) == 0
    assert file.read_text() == "\n"


def test_a_write_that_blocks_takes_its_time_only(tmp_path: Path) -> None:
    """The child is left alone, and ends when the write returns."""
    fifo = tmp_path / "unbind"
    os.mkfifo(fifo)  # opening it blocks until a reader comes
    with SysfsWriter() as writer:
        assert writer.write(fifo, "0000:3b:00.0", 0.2) == BLOCKED
    assert not writer.has_ended()
    assert fifo.read_bytes() == b"0000:3b:00.0"
    end = time.monotonic() + PATIENCE_S
    while not writer.has_ended():
        assert time.monotonic() < end
        os.sched_yield()


def test_a_child_that_is_killed_is_an_error(tmp_path: Path) -> None:
    with SysfsWriter() as writer:
        os.kill(writer.pid, 9)
        assert writer.write(tmp_path, "x", PATIENCE_S) == errno.EPIPE
