# SPDX-License-Identifier: Apache-2.0
"""The lock that proves that a daemon lives and its IMEX is READY."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvdra_api.ids import PodUID
from nvdra_runtime.computedomain import ready_lock
from nvdra_runtime.node import open_file_lock

POD, SUCCESSOR = PodUID("11111111-2222-3333-4444-555555555555"), PodUID("successor")
HOLDER = """
import sys
from pathlib import Path
from nvdra_runtime.computedomain import ready_lock
from nvdra_runtime.node import open_file_lock
open_file_lock.acquire(ready_lock.create(Path(sys.argv[1]), sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def test_without_a_file_nothing_is_known(directory: int) -> None:
    assert ready_lock.is_held(directory, [POD]) is None


def test_the_lock_is_seen_while_it_is_held(tmp_path: Path, directory: int) -> None:
    descriptor = ready_lock.create(tmp_path, POD)
    assert ready_lock.is_held(directory, [POD]) is False
    open_file_lock.acquire(descriptor)
    open_file_lock.acquire(descriptor)
    assert [ready_lock.is_held(directory, [POD]) for _ in range(2)] == [True, True]
    open_file_lock.release(descriptor)
    assert ready_lock.is_held(directory, [POD]) is False
    os.close(descriptor)


def test_it_ends_with_the_process_that_holds_it(tmp_path: Path, directory: int) -> None:
    argv = [sys.executable, "-c", HOLDER, str(tmp_path), POD]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert ready_lock.is_held(directory, [POD]) is True
        process.send_signal(signal.SIGKILL)
    assert ready_lock.is_held(directory, [POD]) is False


def test_the_file_of_an_earlier_pod_says_nothing(tmp_path: Path, directory: int) -> None:
    descriptor = ready_lock.create(tmp_path, POD)
    open_file_lock.acquire(descriptor)
    assert ready_lock.is_held(directory, [SUCCESSOR]) is None
    os.close(descriptor)
    assert ready_lock.is_held(directory, [SUCCESSOR]) is None


def test_a_daemon_that_starts_is_not_ready_by_the_lock_of_another_that_still_runs(
    tmp_path: Path, directory: int
) -> None:
    former = ready_lock.create(tmp_path, POD)
    open_file_lock.acquire(former)
    successor = ready_lock.create(tmp_path, SUCCESSOR)
    assert ready_lock.is_held(directory, [SUCCESSOR]) is False
    open_file_lock.acquire(successor)
    assert ready_lock.is_held(directory, [SUCCESSOR]) is True
    for descriptor in (former, successor):
        os.close(descriptor)


def test_a_link_in_the_files_place_leads_nowhere(tmp_path: Path, directory: int) -> None:
    (tmp_path / ready_lock.FILE).symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic links"):
        ready_lock.is_held(directory, [POD])


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ready_lock.create(tmp_path / "missing", POD)
