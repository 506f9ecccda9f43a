"""Atomic files, and the lock that says who serves this node."""

import subprocess
import sys
from pathlib import Path

import pytest
from nvdra_api.errors import PermanentError
from nvdra_runtime.node.files import InstanceLock, write_atomic

HOLDER = """
import sys
from pathlib import Path
from nvdra_runtime.node.files import InstanceLock
with InstanceLock(Path(sys.argv[1]), {"pid": "4711", "pod": "plugin-x"}):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_file_is_replaced_with_its_mode_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text("old")
    write_atomic(path, b"new", mode=0o600)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_replaced_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.mkdir()
    (path / "child").touch()
    with pytest.raises(OSError, match=r"spec\.json"):
        write_atomic(path, b"new")
    assert list(tmp_path.iterdir()) == [path]


def test_a_second_process_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "instance.lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(PermanentError, match="pid 4711, pod plugin-x"),
            InstanceLock(path, {"pid": "1", "pod": "plugin-y"}),
        ):
            pass
        holder.kill()
        holder.wait()
        with InstanceLock(path, {"pid": "1", "pod": "plugin-y"}):
            assert "plugin-y" in path.read_text()


def test_a_second_lock_in_the_same_process_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "instance.lock"
    with InstanceLock(path, {"pid": "1"}):
        with pytest.raises(PermanentError, match="pid 1"), InstanceLock(path, {"pid": "2"}):
            pass
        assert "1" in path.read_text()
    with InstanceLock(path, {"pid": "3"}):
        pass


def test_a_holder_that_has_not_said_who_it_is_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "instance.lock"
    with InstanceLock(path, {}):
        path.write_text("")
        with pytest.raises(PermanentError, match="unknown"), InstanceLock(path, {"pid": "2"}):
            pass


def test_a_shorter_name_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    path = tmp_path / "instance.lock"
    with InstanceLock(path, {"pod": "a-very-long-name"}):
        pass
    with InstanceLock(path, {"pod": "b"}):
        assert path.read_text() == '{"pod": "b"}'


def test_a_lock_whose_file_was_taken_away_is_taken_anew(tmp_path: Path) -> None:
    path = tmp_path / "plugin" / "instance.lock"
    path.parent.mkdir()
    with InstanceLock(path, {"pid": "1"}) as lock:
        lock.reacquire_if_replaced()
        path.unlink()
        path.parent.rmdir()
        lock.reacquire_if_replaced()
        with pytest.raises(PermanentError, match="pid 1"), InstanceLock(path, {"pid": "2"}):
            pass
    with InstanceLock(path, {"pid": "3"}):
        pass


def test_whoever_locks_a_new_file_first_stays(tmp_path: Path) -> None:
    path = tmp_path / "instance.lock"
    with InstanceLock(path, {"pid": "1"}) as lock:
        path.unlink()
        with InstanceLock(path, {"pid": "2"}), pytest.raises(PermanentError, match="pid 2"):
            lock.reacquire_if_replaced()
