# SPDX-License-Identifier: Apache-2.0
"""Locks among the commands of a machine."""

import fcntl
import io
import threading
import time
from pathlib import Path

from nvdra_lab import state
from nvdra_lab.progress import Progress


def test_who_waits_for_a_lock_is_told_for_whom(tmp_path: Path) -> None:
    lock, told = tmp_path / "cache/x.lock", io.StringIO()
    progress = Progress(told)
    with state.locked(lock, progress, "nobody"):
        assert told.getvalue() == ""
    held = lock.open("w")
    fcntl.flock(held, fcntl.LOCK_EX)
    entered = threading.Event()

    def enter() -> None:
        with state.locked(lock, progress, "another command"):
            entered.set()

    waiting = threading.Thread(target=enter)
    waiting.start()
    time.sleep(0.1)
    assert not entered.is_set()
    held.close()
    waiting.join(5)
    assert entered.is_set()
    assert "✓ waiting for another command" in told.getvalue()
